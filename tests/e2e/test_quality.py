"""make quality: one table of a model's variants, made in steps that are not made twice."""
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

import gramian_e2e as e2e
from gramian_e2e import BINARY, REPORT, ROOT, TINYSTORIES, TinyModel, random_rows, write_rows

VARIANTS = ("qqq-g128", "qqq-row", "rtn-g128")
FEW = ("--samples", "4", "--heldout-samples", "3", "--sequence-length", "64")
NUMBER = r"\d+\.\d+"


class Quality(e2e.GramianTestCase):
    def command(self, model, *flags):
        return [sys.executable, ROOT / "tools" / "quality.py", model, "--output", self.path("out"), "--binary", BINARY, *flags]

    def compare(self, model, *flags, code=0):
        process = subprocess.run(list(map(str, self.command(model, *flags))), capture_output=True, check=False)
        self.assertEqual(process.returncode, code, process.stderr.decode() + process.stdout.decode())
        return process.stdout.decode(), process.stderr.decode()

    def steps(self, err):
        return [line.removeprefix("--- ") for line in err.splitlines() if line.startswith("--- ")]

    def test_bundled_model(self):
        out, err = self.compare(TINYSTORIES, *FEW)
        folder = self.path("out") / "tinystories"
        generates = " generate" in self.ok("--help").out
        generated = [f"{name}-sample" for name in ("original", *VARIANTS)] if generates else []
        steps = ["original-eval", *(step for name in VARIANTS for step in (name, f"{name}-eval")), *generated]
        self.assertEqual(self.steps(err), steps)
        self.assertRegex(out, rf"(?m)^original +10.49 MB +16.000 +{NUMBER} +\d+ MB$")
        for name in VARIANTS:
            report = json.loads((folder / name / REPORT).read_text())
            scores = json.loads((folder / f"{name}-eval.json").read_text())
            self.assertEqual((scores["rows"], scores["tokens"]), (3, 3 * 63))
            if name.startswith("qqq"):
                self.assertEqual((report["rows"], report["tokens"]), (4, 256))
            self.assertEqual(report["group_size"], -1 if name == "qqq-row" else 128)
            low, high = scores["kl_ci95"]
            cells = (rf"{report['bits_per_weight']:.3f}", f"{scores['perplexity']:.3f}", f"{scores['kl_mean']:.5f}",
                     f"{low:.5f} .. {high:.5f}", f"{report['seconds']:.1f}")
            self.assertRegex(out, rf"(?m)^{name} +3.\d\d MB +" + " +".join(cells) + r" +\d+ MB$")
        self.assertEqual(out.splitlines()[:-1], (folder / "table.txt").read_text().splitlines())

        # Nothing is made twice; what is gone, and what was made of it, is made anew.
        again, err = self.compare(TINYSTORIES, *FEW)
        self.assertEqual((again, self.steps(err)), (out, []))
        shutil.rmtree(folder / "qqq-row")
        (folder / "rtn-g128-eval.json").unlink()
        _, err = self.compare(TINYSTORIES, *FEW)
        self.assertEqual(self.steps(err), ["qqq-row", "qqq-row-eval", "rtn-g128-eval"] + ["qqq-row-sample"] * generates)
        out, err = self.compare(TINYSTORIES, *FEW[:-1], "65", code=2)
        self.assertRegex(err, r"(?m)^error: .*sequence_length 64, now it is 65; remove .*--output$")
        self.assertEqual(out, "")

    def test_layers_that_do_not_fit(self):
        """They are left out and said; a variant that fails does not take the others with it."""
        model = TinyModel(intermediate=320).write(self.path("model"))
        texts = ("--calibration", write_rows(self.path("rows.safetensors"), random_rows(6, 48)),
                 "--heldout", write_rows(self.path("held.safetensors"), random_rows(6, 24)))
        broken = self.path("out") / "model" / "rtn-g128"
        broken.parent.mkdir(parents=True)
        broken.write_text("in the way")
        out, err = self.compare(model, *texts, code=1)
        for name in VARIANTS[:2]:
            self.assertRegex(out, rf"(?m)^{name} +\d+ kB +{NUMBER} ")
        self.assertIn("qqq-g128: 2 of 14 linear layers do not fit and stay as they are\n", out)
        self.assertNotIn("qqq-row:", out.split("\n\n")[0])
        self.assertRegex(out, r"(?m)^rtn-g128 +failed$")
        self.assertIn(f"error: {broken}", err)

    def test_stopped(self):
        """A stopped run says so and goes on with the same command."""
        command = list(map(str, self.command(TINYSTORIES, "--sequence-length", "128", "--heldout-samples", "2")))
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        while not list(self.path("out").glob("tinystories/qqq-row.journal")) and process.poll() is None:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        out, err = process.communicate(timeout=60)
        self.assertEqual((process.returncode, out), (130, b""), err.decode())
        self.assertIn(b"goes on from here", err)
        self.assertFalse((self.path("out") / "tinystories" / "qqq-row").exists())
        self.assertTrue((self.path("out") / "tinystories" / "qqq-g128-eval.json").exists())

    def test_bad_input(self):
        _, err = self.compare(self.path("none"), code=2)
        self.assertIn("no such folder", err)
        self.assertFalse((self.path("out") / "none").exists())
        result = subprocess.run(["make", "quality", "-C", ROOT, "-n", "MODEL=a b", "TEXT=c", "HELDOUT=d", "ARGS=--samples 3"],
                                capture_output=True, check=True)
        self.assertIn(b'tools/quality.py "a b" --calibration "c" --heldout "d" --samples 3', result.stdout)


if __name__ == "__main__":
    unittest.main()
