"""Calibration data of every kind."""
import json
import unittest

import torch

import gramian
from support import TestCase


class Words:
    """A tokenizer: one id a word; 1 stands in front where special tokens are asked for."""

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [1] * add_special_tokens + [2 + len(word) for word in text.split()]}

    def apply_chat_template(self, messages, tokenize):
        assert not tokenize
        return " ".join(f"{message['role']} {message['content']}" for message in messages)


def rows(data, **options):
    return gramian.calibration_rows(data, tokenizer=Words(), **options)


class Data(TestCase):
    def test_texts_mappings_messages_and_ids(self):
        chat = [{"role": "user", "content": "a bb"}]
        for item, expected in (("a bb", [1, 3, 4]), ({"text": "a bb"}, [1, 3, 4]), ({"messages": chat}, [6, 3, 4]), (chat, [6, 3, 4]),
                               ([7, 8], [7, 8]), (torch.tensor([7, 8]), [7, 8]), ({"input_ids": [7, 8]}, [7, 8]),
                               ({"input_ids": [7, 8, 9], "attention_mask": [0, 1, 1]}, [8, 9])):
            self.assertEqual(rows([item, item]).ids, [expected, expected], item)

    def test_any_iterable(self):
        self.assertEqual(rows({"text": text} for text in ("a", "bb")).ids, [[1, 3], [1, 4]])

    def test_tensors_and_masks(self):
        ids = torch.arange(6).reshape(2, 3)
        self.assertEqual(rows(ids).ids, [[0, 1, 2], [3, 4, 5]])
        self.assertEqual(rows({"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 0], [0, 1, 1]])}).ids, [[0, 1], [4, 5]])

    def test_long_rows_are_split_blank_ones_dropped_and_the_first_taken(self):
        got = rows([[1, 2, 3, 4, 5], [], [6]], sequence_length=2)
        self.assertEqual((got.ids, got.blank, got.split), ([[1, 2], [3, 4], [5], [6]], 1, 1))
        self.assertEqual(rows([[1, 2, 3], [4]], sequence_length=2, samples=2).ids, [[1, 2], [3]])

    def test_files(self):
        text = self.folder / "text.txt"
        text.write_text(" ".join("abc" for _ in range(41)))
        got = rows(text, sequence_length=10, samples=2)
        self.assertEqual(got.ids, [[5] * 10, [5] * 10])
        lines = self.folder / "rows.jsonl"
        lines.write_text("\n".join(json.dumps(line) for line in ({"text": "a"}, {"input_ids": [4, 5]})) + "\n")
        self.assertEqual(rows(lines).ids, [[1, 3], [4, 5]])

    def test_errors_name_the_row(self):
        for data, words in (([3.5], "row 0.*float"), ([{"txt": "a"}], "row 0.*txt"), ([], "no row"), (7, "int"),
                            ("nothing.txt", "nothing.txt"), (torch.zeros(2, 2), "integers")):
            with self.assertRaisesRegex(gramian.GramianError, words):
                rows(data)
        with self.assertRaisesRegex(gramian.GramianError, "row 0.*tokenizer"):
            gramian.calibration_rows(["a"])


if __name__ == "__main__":
    unittest.main()
