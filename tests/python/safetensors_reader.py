"""A checkpoint's tensors as torch tensors, without the package safetensors."""
import json
import pathlib

import torch

TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
         "I32": torch.int32, "I8": torch.int8, "U8": torch.uint8, "F8_E4M3": torch.float8_e4m3fn}


def load_file(path):
    content = bytearray(pathlib.Path(path).read_bytes())
    length = int.from_bytes(content[:8], "little")
    header = json.loads(bytes(content[8:8 + length]))
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        data = torch.frombuffer(content[begin:end], dtype=torch.uint8) if end > begin else torch.empty(0, dtype=torch.uint8)
        tensors[name] = data.view(TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def load(folder):
    tensors = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        tensors.update(load_file(path))
    return tensors


def share_of_other_codes(one, other, prefix=""):
    """Of the 4-bit codes of two QQQ checkpoints, in modules whose names begin with `prefix`, the share that differs."""
    one, other = load(one), load(other)
    if set(one) != set(other):
        raise AssertionError("other tensors")
    differ = total = 0
    for name in one:
        if name.endswith(".B") and name.startswith(prefix):
            changed = one[name].view(torch.uint8) ^ other[name].view(torch.uint8)
            differ += int((changed & 15).ne(0).sum() + (changed >> 4).ne(0).sum())
            total += 2 * changed.numel()
    return differ / total
