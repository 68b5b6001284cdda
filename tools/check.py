#!/usr/bin/env python3
"""The rules of the house that no compiler knows. Reads only, prints FILE:LINE: [rule] message, exits 1 on any finding.

usage: tools/check.py [--root DIR] [--objects BUILD_DIR]

  layering    a folder under src/ includes itself and lower layers only       checks/layering.py
  coroutine   co_await stands alone, the forms that g++ 12 compiles correctly  checks/coroutines.py
  banned      calls, headers and compiler flags with a better replacement      checks/banned.py
  length      files and functions                                             checks/lengths.py
  orphan      tests, goldens and benchmarks that nothing runs                  checks/orphans.py
  document    documents that name missing files                               checks/documents.py
  leftover    unfinished work, paths of one machine                            checks/documents.py
"""
import argparse
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from checks import banned, coroutines, documents, layering, lengths, orphans  # noqa: E402
from checks.tree import Tree  # noqa: E402

RULES = (layering.check, coroutines.check, banned.check, lengths.check, orphans.check, documents.check)


def findings(root, objects=None):
    """All findings for the tree at `root`, sorted, as (path, line, rule, message)."""
    tree = Tree(root)
    found = [finding for rule in RULES for finding in rule(tree)]
    if objects is not None:
        found += banned.check_commands(tree, pathlib.Path(objects))
    return sorted(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parent.parent, type=pathlib.Path)
    parser.add_argument("--objects", help="build folder: the compiler flags that were really used are checked too")
    arguments = parser.parse_args()
    found = findings(arguments.root, arguments.objects)
    for path, line, rule, message in found:
        print(f"{path}:{line}: [{rule}] {message}")
    print(f"tools/check.py: {len(found)} finding{'' if len(found) == 1 else 's'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
