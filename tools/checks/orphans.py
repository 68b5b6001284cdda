"""Tests, golden files and benchmarks that nothing runs."""
import re

from .tree import LAYERS

TESTED_LAYERS = LAYERS[:-1]  # the command line is tested end to end


def check(tree):
    yield from _check_units(tree)
    yield from _check_goldens(tree)
    yield from _check_end_to_end(tree)
    for path in tree.files:
        if path.endswith("_bench.cpp"):
            if not path.startswith(("src/", "bench/")):
                yield path, 1, "orphan", "no target: benchmarks lie beside their kernel or in bench/"
            elif "tiny" not in tree.text(path):
                yield path, 1, "orphan", "no benchmark named tiny: the test suite runs nothing of it"


def _check_units(tree):
    kernels = {}
    for path in tree.files:
        parts = path.split("/")
        if parts[0] == "tests" and path.endswith(".cpp"):
            folder = parts[1] if len(parts) > 2 else ""
            if folder == "golden_sets":
                if len(parts) != 4:
                    yield path, 1, "orphan", "no target: golden tests lie in tests/golden_sets/<set>/"
            elif folder not in TESTED_LAYERS + ("support",):
                yield path, 1, "orphan", f"no target: unit tests lie in tests/<layer>/ ({', '.join(TESTED_LAYERS)})"
            elif folder != "support" and not path.endswith("_test.cpp"):
                yield path, 1, "orphan", "no target: the name must end in _test.cpp"
        elif path.startswith("src/") and path.endswith("_test.cpp") and parts[1] != "kernels":
            yield path, 1, "orphan", f"only kernels keep tests beside the code; this belongs in tests/{parts[1]}/"
        if path.startswith("src/kernels/") and len(parts) > 3 and path.endswith(".cpp"):
            kernels.setdefault("/".join(parts[:3]), []).append(path)
    for folder, sources in kernels.items():
        if not any(path.endswith("_test.cpp") for path in sources):
            yield sources[0], 1, "orphan", f"no test in {folder}/"


def _check_goldens(tree):
    compared = {path.split("/")[2] for path in tree.files if re.match(r"tests/golden_sets/[^/]+/[^/]+\.cpp$", path)}
    for path in tree.files:
        parts = path.split("/")
        if path.startswith("tests/golden_sets/") and len(parts) > 3 and parts[2] not in compared:
            yield path, 1, "orphan", "a golden set without a .cpp file"
    reported = set()
    for path in tree.files:
        parts = path.split("/")
        if path.startswith("tests/golden/") and len(parts) > 3 and parts[2] not in compared | reported:
            reported.add(parts[2])
            yield path, 1, "orphan", f"nothing compares this set: tests/golden_sets/{parts[2]}/ is missing"


def _check_end_to_end(tree):
    scripts = [path for path in tree.files if path.startswith("tests/e2e/") and path.endswith(".py")]
    texts = {path: tree.text(path) for path in scripts}
    for path in scripts:
        name = path.rsplit("/", 1)[-1][:-3]
        if path.count("/") > 2:
            yield path, 1, "orphan", "no test: end-to-end tests lie directly in tests/e2e/"
        elif name.startswith("test_"):
            if not re.search(r"(?m)^class \w+\(.*TestCase\)", texts[path]):
                yield path, 1, "orphan", "a test file without a unittest.TestCase"
        elif name != "__init__" and not any(
                re.search(rf"(?m)^\s*(?:import|from)\s+\.?{name}\b", text) for other, text in texts.items() if other != path):
            yield path, 1, "orphan", "neither a test (test_*.py) nor imported by one"
