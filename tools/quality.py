#!/usr/bin/env python3
"""Quantizes a model folder several ways, compares each with the original and prints one table.

usage: tools/quality.py MODEL [options]      (make quality MODEL=DIR TEXT=FILE HELDOUT=FILE ARGS="...")

The work is done by the program, one step at a time: quantize, eval and, where it is built, generate. What a step made lies in
OUTPUT/<model's name>/ and is not made again: a run that was stopped goes on, and a variant whose files are removed is made
anew. Other settings than those of the files there are refused. Exit codes: 0 done, 1 a variant failed, 2 bad input, 130
stopped.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUNDLED = ROOT / "models" / "tinystories"
# name -> method, group size
VARIANTS = {"qqq-g128": ("qqq", 128), "qqq-row": ("qqq", -1), "rtn-g128": ("rtn", 128)}
HEAD = ("variant", "size", "bits/weight", "perplexity", "KL to original", "95 % interval", "seconds", "peak memory")


class Failed(Exception):
    """A step failed, and the program has said why."""


def refuse(message):
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog=__doc__.split("\n\n")[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path, help="model folder")
    parser.add_argument("--calibration", type=pathlib.Path, default=BUNDLED / "calibration.txt",
                        help=".txt, .jsonl or ready rows (default: the bundled children's stories)")
    parser.add_argument("--heldout", type=pathlib.Path, default=BUNDLED / "heldout.txt", help="text to evaluate on, likewise")
    parser.add_argument("--samples", type=int, help="calibration rows (default: 128, or as many as there are)")
    parser.add_argument("--heldout-samples", type=int, default=32, help="rows to evaluate on, at most (default: %(default)s)")
    parser.add_argument("--sequence-length", type=int, default=256, help="tokens per row of text (default: %(default)s)")
    parser.add_argument("--prompt", default="Once upon a time", help="of the sample that each variant writes")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("quality-out"), help="(default: %(default)s)")
    parser.add_argument("--binary", default=os.environ.get("GRAMIAN_BINARY", ROOT / "build" / "gramian"),
                        help="the program (default: $GRAMIAN_BINARY or build/gramian)")
    return parser.parse_args()


def write(path, content):
    """Under its name only when it is complete."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(content, encoding="utf-8")
    partial.replace(path)


def human_bytes(count):
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            return f"{count:.2f} {unit}" if count < 100 and unit != "B" else f"{count:.0f} {unit}"
        count /= 1000


class Comparison:
    def __init__(self, options):
        self.options = options
        self.folder = options.output / options.model.resolve().name
        self.failed = []

    def program(self, *arguments):
        """The document that the program prints with --json; its log goes to our stderr."""
        process = subprocess.run([self.options.binary, *map(str, arguments), "--json"], stdout=subprocess.PIPE, check=False)
        if process.returncode == 130:
            raise KeyboardInterrupt
        if process.returncode != 0:
            raise Failed
        return json.loads(process.stdout)

    def step(self, name, *arguments):
        """Runs the program, or reads what it said when it ran before."""
        path = self.folder / f"{name}.json"
        if not path.exists():
            print(f"--- {name}", file=sys.stderr)
            write(path, json.dumps(self.program(*arguments), indent=1))
        return json.loads(path.read_text(encoding="utf-8"))

    def refuse_other_settings(self):
        """Files of one folder belong together."""
        options = self.options
        version = subprocess.run([options.binary, "--version"], stdout=subprocess.PIPE, check=True, text=True).stdout.strip()
        settings = {"program": version, **{name: str(value) for name, value in vars(options).items()
                                           if name not in ("output", "binary")}}
        for name in ("model", "calibration", "heldout"):
            settings[name] = str(getattr(options, name).resolve())
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "settings.json"
        if path.exists():
            there = json.loads(path.read_text(encoding="utf-8"))
            for name in settings:
                if there.get(name) != settings[name]:
                    refuse(f"{self.folder}: was made with {name} {there.get(name)}, now it is {settings[name]}; remove the "
                           "folder or name another --output")
        else:
            write(path, json.dumps(settings, indent=1))

    def quantize(self, name, unfit):
        method, group_size = VARIANTS[name]
        options, output = self.options, self.folder / name
        report = output / "gramian-report.json"
        if not report.exists():
            print(f"--- {name}", file=sys.stderr)
            command = ["quantize", options.model, "-o", output, "--method", method, "--group-size", group_size]
            if method != "rtn":
                command += ["--calibration", options.calibration, "--sequence-length", options.sequence_length]
                command += ["--samples", options.samples] if options.samples else []
            self.program(*command, *(["--skip-unfit"] if unfit else []))
            (self.folder / f"{name}-eval.json").unlink(missing_ok=True)
            (self.folder / f"{name}-sample.json").unlink(missing_ok=True)
        return json.loads(report.read_text(encoding="utf-8"))

    def evaluate(self, name, folder, *flags):
        options = self.options
        kind = "--rows" if options.heldout.suffix == ".safetensors" else "--text"
        return self.step(f"{name}-eval", "eval", folder, kind, options.heldout, "--sequence-length", options.sequence_length,
                         "--samples", options.heldout_samples, "--allow-fewer", *flags)

    def sample(self, name, folder):
        return self.step(f"{name}-sample", "generate", folder, "-p", self.options.prompt, "--raw", "-n", 48, "--temperature", 0)

    def attempt(self, name, work):
        try:
            return work()
        except Failed:
            self.failed.append(name)
            return None

    def variant(self, name, unfit):
        """A row of the table."""
        report = self.quantize(name, unfit)
        scores = self.evaluate(name, self.folder / name, "--reference", self.options.model)
        low, high = scores["kl_ci95"]
        interval = "" if low is None else f"{low:.5f} .. {high:.5f}"
        return report, [name, human_bytes(report["weight_bytes"]), f"{report['bits_per_weight']:.3f}",
                        f"{scores['perplexity']:.3f}", f"{scores['kl_mean']:.5f}", interval, f"{report['seconds']:.1f}",
                        human_bytes(report["peak_rss_bytes"])]

    def run(self):
        model = self.program("inspect", self.options.model)
        self.refuse_other_settings()
        base = self.attempt("original", lambda: self.evaluate("original", self.options.model))
        rows, notes, bits = [], [], ""
        for name, (_, group_size) in VARIANTS.items():
            key = "qqq_g128" if group_size == 128 else "qqq_row"
            unfit = sum(module[key] is not True for module in model["modules"])
            made = self.attempt(name, lambda: self.variant(name, unfit))
            if made is None:
                rows.append([name, "failed"] + [""] * (len(HEAD) - 2))
                continue
            report, row = made
            rows.append(row)
            # Entries of the whole source, from what the report says of them.
            entries = 8 * report["weight_bytes"] / report["bits_per_weight_total"]
            bits = f"{8 * model['weight_bytes'] / entries:.3f}"
            if unfit:
                notes.append(f"{name}: {unfit} of {len(model['modules'])} linear layers do not fit and stay as they are")
        original = ["failed"] + [""] * 6 if base is None else [
            human_bytes(model["weight_bytes"]), bits, f"{base['perplexity']:.3f}", "", "", "", human_bytes(base["peak_rss_bytes"])]
        text = self.table([list(HEAD), ["original", *original], *rows]) + "".join(note + "\n" for note in notes)
        text += f"calibrated on {self.options.calibration}, evaluated on {self.options.heldout}"
        text += f" ({base['rows']} rows, {base['tokens']} tokens)\n" if base else "\n"
        text += self.samples()
        write(self.folder / "table.txt", text)
        print(text + f"all files are in {self.folder}/")
        return 1 if self.failed else 0

    def samples(self):
        """What each model writes after the prompt."""
        verbs = subprocess.run([self.options.binary, "--help"], stdout=subprocess.PIPE, check=True, text=True).stdout
        if re.search(r"(?m)^ +generate\b", verbs) is None or not (self.options.model / "tokenizer.json").exists():
            return ""
        text = f"\nAfter \"{self.options.prompt}\", always the most likely token:\n"
        for name in ("original", *VARIANTS):
            folder = self.options.model if name == "original" else self.folder / name
            made = None if name in self.failed else self.attempt(name, lambda: self.sample(name, folder))
            if made is not None:
                text += f"{name}: {' '.join(made['text'].split())}\n"
        return text

    @staticmethod
    def table(rows):
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = ["  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths)))
                 for row in rows]
        return "".join(line.rstrip() + "\n" for line in lines)


def main():
    options = arguments()
    if not os.access(options.binary, os.X_OK):
        refuse(f"{options.binary} is not built; make build")
    try:
        return Comparison(options).run()
    except Failed:
        return 2
    except KeyboardInterrupt:
        print("error: stopped; the same command goes on from here", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
