"""Calls, headers and compiler flags that have a better replacement here."""
import json
import os
import re

from .tree import is_test, matches

HEADERS = {
    "ATen/ATen.h": "include ATen/core/Tensor.h and tensor/ops.h (4.7 s of compile time against 1.2 s)",
    "torch/torch.h": "include ATen/core/Tensor.h and tensor/ops.h (12 s of compile time against 1.2 s)",
    "torch/extension.h": "include the few torch/csrc headers that the binding needs",
    "cassert": "throw gramian::Error for input, GRAMIAN_CHECK (base/error.h) for bugs",
    "assert.h": "throw gramian::Error for input, GRAMIAN_CHECK (base/error.h) for bugs",
    "bits/stdc++.h": "include what is used",
}
IOSTREAM = "messages go through base/log.h; results are printed by src/cli"
STDOUT = "stdout belongs to results, which src/cli prints; messages go through base/log.h"

# (pattern on code without comments and strings, also in tests?, replacement)
CALLS = (
    (r"\busing\s+namespace\s+std\b(?=\s*;)", True, "write std::"),
    (r"(?<![\w.>])assert\s*\(", True, "throw gramian::Error for input, GRAMIAN_CHECK (base/error.h) for bugs"),
    (r"(?<![\w.>:])(?:std::)?s?rand\s*\(", True, "use std::mt19937_64 with a seed that is printed"),
    (r"\bstd::system\s*\(|(?<![\w.>:])system\s*\(", True, "no shell: use the library call, or a test script in Python"),
    (r"\btorch::(?:jit::)?(?:load|pickle_load)\b", True, "pickles run code: read safetensors"),
    (r"\.(sigmoid|tanh|silu|gelu|softplus)_?\(", False, "its last bits depend on the number of threads: use tensor/ops.h"),
    (r"\bat::parallel_for\b", True, "it runs serially without -fopenmp: use base/parallel.h"),
    (r"\bstd::cout\b|(?<![\w.>:])(?:std::)?(?:printf|puts|putchar|vprintf)\s*\("
     r"|\bfprintf\s*\(\s*stdout\b", False, STDOUT),
)
# (pattern in build files, replacement)
BUILD = (
    (r"\bfind_package\s*\(\s*Torch\b", "cmake/LibTorch.cmake finds the libraries without a CUDA toolkit"),
    (r"-ffast-math|-Ofast|-funsafe-math-optimizations", "it changes results: write the faster formula instead"),
    (r"(?<![\w-])-m(?:avx|sse|fma\b|f16c|bmi|amx|arch=|cpu=|tune=)[\w.=-]*",
     'no flags for one CPU: [[gnu::target("...")]] on the functions, chosen at run time'),
)
PRAGMA = r"#\s*pragma\s+(?:GCC\s+(?:target|optimize)|clang\s+attribute)"


def check(tree):
    for source in tree.sources("src", "tests", "bench", "fuzz", "python"):
        in_cli = source.path.startswith("src/cli/")
        test = is_test(source.path)
        for line, name, _ in source.includes:
            if name in HEADERS:
                yield source.path, line, "banned", f"#include <{name}>: {HEADERS[name]}"
            elif name == "iostream" and not (in_cli or test):
                yield source.path, line, "banned", f"#include <iostream>: {IOSTREAM}"
        for pattern, tests_too, replacement in CALLS:
            if (test and not tests_too) or (in_cli and replacement is STDOUT):
                continue
            for line, match in matches(source.code, pattern):
                yield source.path, line, "banned", f"{' '.join(match.group().split()).rstrip('( ')}: {replacement}"
        for line, match in matches(source.code, PRAGMA):
            yield source.path, line, "banned", f"{match.group()}: {BUILD[-1][1]}"
    for path in tree.build_files():
        text = re.sub(r"(?m)#.*$", "", tree.text(path))
        for pattern, replacement in BUILD:
            for line, match in matches(text, pattern):
                yield path, line, "banned", f"{match.group()}: {replacement}"


def check_commands(tree, build):
    """The flags with which sources were really compiled."""
    commands = build / "compile_commands.json"
    if not commands.is_file():
        yield str(build), 1, "banned", "no compile_commands.json in the build folder: configure first"
        return
    seen = set()
    for entry in json.loads(commands.read_text(encoding="utf-8")):
        for pattern, replacement in BUILD[1:]:
            for match in re.finditer(pattern, entry["command"]):
                if match.group() not in seen:
                    seen.add(match.group())
                    yield os.path.relpath(entry["file"], tree.root), 1, "banned", f"compiled with {match.group()}: {replacement}"
