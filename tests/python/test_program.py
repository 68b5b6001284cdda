"""The console program, and what importing costs and checks."""
import os
import pathlib
import subprocess
import sys
import unittest

import gramian
from support import TINYSTORIES, TestCase

FOLDER = pathlib.Path(gramian.__file__).parent


def python(*arguments, **environment):
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False,
                          env={**os.environ, **environment})


class Program(TestCase):
    def test_the_same_verbs_and_exit_codes(self):
        inspected = python("-m", "gramian", "inspect", TINYSTORIES)
        self.assertEqual(inspected.returncode, 0, inspected.stderr)
        self.assertIn("llama", inspected.stdout)
        own = subprocess.run([os.environ["GRAMIAN_BINARY"], "inspect", TINYSTORIES], capture_output=True, text=True, check=True)
        self.assertEqual(inspected.stdout, own.stdout)
        wrong = python("-m", "gramian", "inspect", self.folder / "nothing")
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("no such folder", wrong.stderr)
        self.assertEqual(python("-m", "gramian", "--version").stdout.split()[1], gramian.__version__)


class Import(TestCase):
    def test_another_torch_is_named_before_the_module_is_loaded(self):
        copy = self.folder / "gramian"
        copy.mkdir()
        for file in FOLDER.iterdir():
            if file.is_file() and file.name != "_build.py":
                (copy / file.name).symlink_to(file)
        (copy / "_build.py").write_text('VERSION = "0"\nTORCH_VERSION = "1.0.0"\n')
        result = python("-c", "import gramian; gramian.HessianAccumulator", PYTHONPATH=str(self.folder))
        self.assertNotEqual(result.returncode, 0)
        self.assertRegex(result.stderr, r"built for torch 1\.0\.0, but torch \d")

    def test_importing_loads_nothing(self):
        result = python("-c", "import gramian, sys; print('torch' in sys.modules); gramian.encode; print('torch' in sys.modules)")
        self.assertEqual(result.stdout.split(), ["False", "True"], result.stderr)

    def test_every_public_name_is_there(self):
        for name in gramian.__all__:
            self.assertTrue(getattr(gramian, name) is not None, name)
        with self.assertRaises(AttributeError):
            gramian.nothing


if __name__ == "__main__":
    unittest.main()
