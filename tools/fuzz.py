#!/usr/bin/env python3
"""Runs the fuzz targets of a build of the preset "fuzz" (`make fuzz`), each for a while, as many side by side as there are cores.
What a target finds new is kept as its working corpus, so that the next run goes on from there; fuzz/corpus has the seeds. A crash, a
leak, an input that takes longer than twenty seconds or makes a reader allocate much more than it is fails the run and is named.

  fuzz.py [--build build-fuzz] [--seconds 600] [--jobs CORES] [TARGET...]
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SEEDS = ROOT / "fuzz" / "corpus"
LIMITS = ["-timeout=20", "-rss_limit_mb=2048", "-malloc_limit_mb=256"]
# LibTorch is not instrumented, which needs no option: its blocks come from the same malloc, and libstdc++ marks no ends of containers
# unless told to. Its threads would only take cores from other targets.
ENVIRONMENT = {
    "ASAN_OPTIONS": "quarantine_size_mb=64",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "OMP_NUM_THREADS": "1",
}

stopped = threading.Event()


def targets(build):
    return sorted(path.name.removesuffix("_fuzz") for path in build.glob("*_fuzz") if path.is_file())


def execute(command, log):
    """Exit code, or None when everything was stopped meanwhile."""
    with open(log, "wb") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | ENVIRONMENT)
        while child.poll() is None:
            if stopped.wait(0.2):
                child.kill()
                child.wait()
                return None
    return child.returncode


def run(build, target, seconds):
    """One target: (ok, a line that says how it went)."""
    working, found, log = build / "corpus" / target, build / "found", build / "logs" / f"{target}.log"
    for folder in (working, found, log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    program, inputs, start = build / f"{target}_fuzz", 0, time.monotonic()
    while True:
        left = max(1, round(seconds - (time.monotonic() - start)))
        code = execute([program, f"-max_total_time={left}", "-print_final_stats=1", *LIMITS, f"-artifact_prefix={found}/{target}-", working,
                        SEEDS / target], log)
        if code is None:
            return False, f"{target}: stopped"
        text = log.read_text(errors="replace")
        runs = re.findall(r"stat::number_of_executed_units: *(\d+)", text)
        inputs += int(runs[-1]) if runs else 0
        done = f"{target}: {inputs} inputs in {time.monotonic() - start:.0f} s"
        if code == 0 and runs:
            return True, f"{done}, {len(list(working.iterdir()))} kept"
        unit = re.findall(r"Test unit written to (\S+)", text)
        # Time is the clock's: on a busy machine, or one that slept, an input may take long once.
        if unit and f"{target}-timeout-" in unit[-1] and execute([program, *LIMITS, unit[-1]], log.with_suffix(".again")) == 0:
            pathlib.Path(unit[-1]).unlink()
            continue
        what = re.findall(r"^(?:SUMMARY: |==\d+== ?ERROR: )(.*)$", text, re.MULTILINE)
        line = f"{done}, FAILED: {what[-1] if what else f'exit code {code}'}"
        if unit:
            return False, f"{line}\n  input: {unit[-1]}\n  again: {program} {unit[-1]}\n  log:   {log}"
        return False, f"{line}\n  log:   {log}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=ROOT / "build-fuzz", type=pathlib.Path)
    parser.add_argument("--seconds", default=600, type=int)
    parser.add_argument("--jobs", default=os.cpu_count(), type=int)
    parser.add_argument("targets", nargs="*")
    arguments = parser.parse_args()
    known = targets(arguments.build)
    unknown = [name for name in arguments.targets if name not in known]
    if not known or unknown:
        parser.error(f"no target {', '.join(unknown) or 'at all'} in {arguments.build}; built are: {', '.join(known) or 'none'}")
    build = arguments.build.resolve()
    faults = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        runs = [pool.submit(run, build, name, arguments.seconds) for name in arguments.targets or known]
        try:
            for each in concurrent.futures.as_completed(runs):
                fine, line = each.result()
                faults += not fine
                print(line, flush=True)
        except KeyboardInterrupt:
            stopped.set()
            for each in runs:
                each.cancel()
            return 130
    print(f"{len(runs)} targets, {faults} with a fault")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
