"""`gramian logits` against the logits that other implementations made: a batch, row by row, and left-padded with a mask.

Walks the set `arch` of tests/golden, or of the folder that GRAMIAN_GOLDEN names.
"""
import json
import os
import pathlib
import unittest

import gramian_e2e as e2e
from gramian_e2e import read_safetensors, tensor, write_safetensors

GOLDEN = pathlib.Path(os.environ.get("GRAMIAN_GOLDEN", e2e.ROOT / "tests" / "golden")) / "arch"
PADDING = 5


def matrix(item):
    values, width = item.values(), item.shape[1]
    return [values[at:at + width] for at in range(0, len(values), width)]


class GoldenLogits(e2e.GramianTestCase):
    def logits(self, model, ids, mask=None, batch=8):
        """[row][position] -> one value per word."""
        count, length = len(ids), len(ids[0])
        tensors = {"input_ids": tensor("I64", [count, length], sum(ids, []))}
        if mask is not None:
            tensors["attention_mask"] = tensor("I64", [count, length], sum(mask, []))
        write_safetensors(self.path("ids.safetensors"), tensors)
        self.report("logits", model, "--input", self.path("ids.safetensors"), "--output", self.path("out.safetensors"),
                    "--dtype", "float32", "--batch", batch)
        item = read_safetensors(self.path("out.safetensors"))["logits"]
        flat = e2e.matrix(item)
        return [flat[row * length:(row + 1) * length] for row in range(count)]

    def compare(self, found, expected, bound, what):
        worst = max(abs(a - b) for row, other in zip(found, expected) for one, two in zip(row, other)
                    for a, b in zip(one, two))
        self.assertLessEqual(worst, bound, what)

    def check(self, folder, bound):
        golden = read_safetensors(folder / "golden.safetensors")
        ids, length = matrix(golden["input_ids"]), golden["input_ids"].shape[1]
        flat = e2e.matrix(golden["logits"])
        expected = [flat[row * length:(row + 1) * length] for row in range(len(ids))]
        self.compare(self.logits(folder, ids), expected, bound, "a batch")
        self.compare(self.logits(folder, ids, batch=1), expected, bound, "row by row")
        # Beside a longer row that needs no padding.
        padded = [[7] * PADDING + row for row in ids] + [ids[0] + ids[-1][:PADDING]]
        mask = [[0] * PADDING + [1] * length for _ in ids] + [[1] * (PADDING + length)]
        found = [row[PADDING:] for row in self.logits(folder, padded, mask)]
        self.compare(found, expected, bound, "left-padded")

    def test_every_folder(self):
        index = json.loads((GOLDEN / "index.json").read_text())
        compared = 0
        for folder in sorted(path.parent for path in GOLDEN.glob("*/golden.safetensors")):
            inspected = e2e.gramian("inspect", folder, "--json")
            if inspected.code != 0 and "is not built" in inspected.err:
                continue
            with self.subTest(folder.name):
                self.check(folder, index[folder.name]["tol_logits_max_abs"])
                compared += 1
        self.assertGreater(compared, 0)


if __name__ == "__main__":
    unittest.main()
