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
        self.example("gguf.py", TINYSTORIES, TINYSTORIES / "calibration.txt", out, "--type", "q2_k", "--samples", 4, "--sequence-length", 64)
        self.assertEqual(out.read_bytes()[:4], b"GGUF")
        report = json.loads((self.folder / "out.gguf.report.json").read_text())
        self.assertEqual(len(report["modules"]), 42)


if __name__ == "__main__":
    unittest.main()
