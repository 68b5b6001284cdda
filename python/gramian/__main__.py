"""The program: `python -m gramian VERB ...` and the console script `gramian` are the same as the engine's own."""
from __future__ import annotations

import os
import sys


def main() -> int:
    # OpenMP reads these when torch is loaded (src/cli/openmp.h has the reason).
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    from ._native import core
    arguments = sys.argv[1:]
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return core.run_cli(["gramian", *arguments])
    from .distributed import Group, threads_of_rank
    from .errors import GramianError
    if arguments[:1] != ["quantize"]:
        print("error: only quantize shares its work among ranks; start other verbs without torchrun", file=sys.stderr)
        return 2
    if not any(argument.split("=")[0] == "--threads" for argument in arguments):
        arguments += ["--threads", str(threads_of_rank())]
    try:
        group = Group()
    except GramianError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    code = core.run_cli(["gramian", *arguments], group)
    if code == 0:
        group.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
