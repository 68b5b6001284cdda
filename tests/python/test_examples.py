"""The scripts of examples/, as a newcomer would start them."""
import json
import os
import subprocess
import sys
import unittest

from support import TINYSTORIES, TestCase, needs_transformers

EXAMPLES = TINYSTORIES.parents[1] / "examples"


@needs_transformers
class Examples(TestCase):
    def example(self, name, *arguments):
        process = subprocess.run([sys.executable, "-W", "ignore", EXAMPLES / name, *map(str, arguments)], capture_output=True, text=True,
                                 check=False, env=os.environ)
        self.assertEqual(process.returncode, 0, process.stderr)
        return process.stdout

    def test_a_gguf_file(self):
        out = self.folder / "out.gguf"
        said = self.example("gguf.py", TINYSTORIES, TINYSTORIES / "calibration.txt", out, "q2_k")
        self.assertIn("42 modules", said)
        report = json.loads((self.folder / "out.gguf.report.json").read_text())
        self.assertEqual((report["method"], report["type"], report["rows_asked"]), ("imatrix", "Q2_K", 64))
        process = subprocess.run([os.environ["GRAMIAN_BINARY"], "generate", out, "--prompt", "One day", "--tokens", "4"], capture_output=True,
                                 text=True, check=False)
        self.assertEqual(process.returncode, 0, process.stderr)

    def test_a_hugging_face_model(self):
        said = self.example("hugging_face.py", TINYSTORIES, TINYSTORIES / "calibration.txt", self.folder / "out", "gptq")
        self.assertIn("42 modules", said)
        self.assertIn("tokenizer.json", os.listdir(self.folder / "out"))

    def test_a_custom_model(self):
        said = self.example("custom_model.py", self.folder / "out")
        self.assertIn("quantized: blocks.0.inner blocks.0.outer", said)
        self.assertLess(float(said.rsplit(maxsplit=1)[-1]), 0.3)

    def test_a_mixture(self):
        said = self.example("mixture.py", self.folder / "out").splitlines()
        self.assertEqual(len(said), 2 * 8 * 3)

    def test_an_importance_matrix(self):
        out = self.folder / "importance.gguf"
        self.assertIn("42 weights", self.example("imatrix.py", TINYSTORIES, TINYSTORIES / "calibration.txt", out))
        self.assertEqual(out.read_bytes()[:4], b"GGUF")


if __name__ == "__main__":
    unittest.main()
