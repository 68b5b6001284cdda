"""Which folder under src/ may include what."""
from .tree import LAYERS, is_test, layer_of

LIBTORCH = ("ATen/", "c10/", "torch/", "caffe2/")
# Headers that declare the tensor type; everything with functions in it costs three times as much to compile and stays
# behind tensor/ops.h. src/models may use operators on tensors, because formulas must be readable there.
TENSOR_HEADERS = {"ATen/core/Tensor.h", "ATen/core/TensorBody.h"}
EXTRA_HEADERS = {"models": {"ATen/TensorOperators.h"}}
FIRST_WITH_LIBTORCH = "tensor"


def check(tree):
    for source in tree.sources("src"):
        layer = layer_of(source.path)
        if layer is None:
            yield source.path, 1, "layering", "sources lie in a layer's folder: src/<layer>/"
        elif layer not in LAYERS:
            yield source.path, 1, "layering", f"src/{layer} is no layer; the layers are {', '.join(LAYERS)}"
        else:
            yield from _check_source(tree, source, layer)


def _check_source(tree, source, layer):
    if is_test(source.path):
        return  # tests and benchmarks beside a kernel may use more than the kernel
    rank = LAYERS.index(layer)
    for line, name, angle in source.includes:
        target = name.split("/")[0]
        if name.startswith(LIBTORCH):
            yield from _check_libtorch(source, layer, line, name)
        elif angle:
            continue
        elif "/" not in name or target not in LAYERS:
            yield source.path, line, "layering", f'write "{name}" from src/: "<layer>/...h"'
        elif LAYERS.index(target) > rank:
            yield (source.path, line, "layering",
                   f"{layer} must not include {target} ({name}): the order is {' < '.join(LAYERS)}")
        elif f"src/{name}" not in tree.files:
            yield source.path, line, "layering", f"there is no src/{name}"


def _check_libtorch(source, layer, line, name):
    if LAYERS.index(layer) < LAYERS.index(FIRST_WITH_LIBTORCH):
        yield source.path, line, "layering", f"{layer} has no LibTorch ({name}): plain pointers and spans"
    elif layer != "tensor" and name not in TENSOR_HEADERS | EXTRA_HEADERS.get(layer, set()):
        yield (source.path, line, "layering",
               f"only src/tensor includes {name}; use tensor methods (ATen/core/Tensor.h) and tensor/ops.h")
