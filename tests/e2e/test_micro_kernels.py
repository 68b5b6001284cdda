"""The inner loops of the Gram and factor tiles hold their sums in registers, in the program as it was built.

A compiler that keeps an array of vectors in memory gives right results at half the speed, which no other test sees.
"""
import platform
import re
import shutil
import subprocess
import unittest

from gramian_e2e import BINARY

TILE = re.compile(r"^[0-9a-f]+ <.*\b(?P<kernel>gram|factor)::.*::(?P<level>avx\w+)::(?P<function>tile<.*)>:$")
INSTRUCTION = re.compile(r"^\s*(?P<address>[0-9a-f]+):\s+(?P<text>\S.*)$")
MULTIPLY_ADD = re.compile(r"^(vfmadd\d+ps|vdpbf16ps)\b")
# A vector read from the stack, or stored anywhere.
SPILL = re.compile(r"^v.*\(%r[sb]p|^v.*%[xyz]mm\d+,-?(0x[0-9a-f]+)?\([^()]*\)$")


def tiles():
    """(kernel, level, function) -> [(address, instruction)]."""
    listing = subprocess.run(["objdump", "-d", "-C", "--no-show-raw-insn", BINARY], check=True, capture_output=True, text=True)
    found, current = {}, None
    for line in listing.stdout.splitlines():
        if line.endswith(">:"):
            match = TILE.match(line)
            current = found.setdefault((match["kernel"], match["level"], match["function"]), []) if match else None
        elif current is not None and (match := INSTRUCTION.match(line)):
            current.append((int(match["address"], 16), match["text"]))
    return found


def inner_loops(instructions):
    """The instructions of each loop that holds no other loop."""
    spans = []
    for address, text in instructions:
        match = re.match(r"j\w+\s+([0-9a-f]+)\b", text)
        if match and instructions[0][0] <= int(match[1], 16) <= address:
            spans.append((int(match[1], 16), address))
    for begin, end in spans:
        if not any((b, e) != (begin, end) and begin <= b and e <= end for b, e in spans):
            yield [text for address, text in instructions if begin <= address <= end]


@unittest.skipUnless(platform.machine() in ("x86_64", "AMD64"), "the vector levels are x86-64")
@unittest.skipUnless(shutil.which("objdump"), "needs objdump")
class Tiles(unittest.TestCase):
    def test_sums_stay_in_registers(self):
        found = tiles()
        if not found:
            self.skipTest("a build without optimization or symbols")
        with open(BINARY, "rb") as file:
            if b"__asan_init" in (program := file.read()) or b"__tsan_init" in program:
                self.skipTest("a sanitizer checks every access")
        levels = set()
        for (kernel, level, function), instructions in found.items():
            loops = [loop for loop in inner_loops(instructions) if any(map(MULTIPLY_ADD.match, loop))]
            with self.subTest(kernel=kernel, level=level, function=function):
                self.assertTrue(loops, "no loop that multiplies")
                for loop in loops:
                    self.assertEqual([text for text in loop if SPILL.match(text)], [])
            levels.add((kernel, level))
        self.assertEqual(levels, {("gram", "avx2"), ("gram", "avx512"), ("gram", "avx512_bf16"),
                                  ("factor", "avx2"), ("factor", "avx512")})


if __name__ == "__main__":
    unittest.main()
