"""The adapter for lm-evaluation-harness, against a base class like its own."""
import sys
import types
import unittest

import torch

from support import TINYSTORIES, TestCase


def fake_harness():
    class LM:
        def __init__(self):
            self.cache_hook = None

    registered = {}

    def register_model(*names):
        def decorate(cls):
            registered.update(dict.fromkeys(names, cls))
            return cls
        return decorate

    for name in ("lm_eval", "lm_eval.api"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["lm_eval.api.model"] = types.ModuleType("lm_eval.api.model")
    sys.modules["lm_eval.api.model"].LM = LM
    sys.modules["lm_eval.api.registry"] = types.ModuleType("lm_eval.api.registry")
    sys.modules["lm_eval.api.registry"].register_model = register_model
    return LM, registered


class Request:
    def __init__(self, *args):
        self.args = args


class Letters:
    """ids are the bytes of a text, moved into the vocabulary."""
    bos_token_id, eos_token_id = 1, 2

    def encode(self, text, add_special_tokens=True):
        return [1] * add_special_tokens + [3 + byte for byte in text.encode()]

    def decode(self, ids):
        return "".join(chr(97 + token % 26) for token in ids)


class Adapter(TestCase):
    def setUp(self):
        super().setUp()
        self.base, self.registered = fake_harness()
        sys.modules.pop("gramian.lm_eval", None)
        import gramian.lm_eval
        self.model = gramian.lm_eval.GramianLM(TINYSTORIES, tokenizer=Letters(), dtype="float32", max_length=32)
        self.logits = lambda ids: self.model._model.logits(ids)

    def tearDown(self):
        for name in [name for name in sys.modules if name.startswith("lm_eval")]:
            del sys.modules[name]

    def test_is_registered(self):
        self.assertIs(self.registered["gramian"], type(self.model))
        self.assertIsInstance(self.model, self.base)

    def test_likelihood_of_a_continuation(self):
        (value, greedy), = self.model.loglikelihood([Request("abc ", "de")])
        ids = Letters().encode("abc de")
        scores = self.logits(ids[:-1]).double().log_softmax(-1)
        # The blank belongs to the continuation.
        expected = sum(scores[i, ids[i + 1]].item() for i in (3, 4, 5))
        self.assertAlmostEqual(value, expected, places=6)
        self.assertIs(greedy, all(scores[i].argmax() == ids[i + 1] for i in (3, 4, 5)))

    def test_whole_texts_in_windows(self):
        text = "once upon a time there was a little dragon"
        total, = self.model.loglikelihood_rolling([Request(text)])
        ids = [1] + Letters().encode(text, add_special_tokens=False)
        expected = 0.0
        for begin in range(0, len(ids) - 1, 32):
            row = ids[begin:begin + 33]
            scores = self.logits(row[:-1]).double().log_softmax(-1)
            expected += scores.gather(1, torch.tensor(row[1:])[:, None]).sum().item()
        self.assertAlmostEqual(total, expected, places=5)

    def test_generates_until_a_stop(self):
        prompt = "once"
        free, = self.model.generate_until([Request(prompt, {"until": [], "max_gen_toks": 8})])
        self.assertEqual(len(free), 8)
        ids = Letters().encode(prompt)
        for _ in range(8):
            ids.append(int(self.logits(ids)[-1].argmax()))
        self.assertEqual(free, Letters().decode(ids[-8:]))
        stopped, = self.model.generate_until([Request(prompt, {"until": [free[3]], "max_gen_toks": 8})])
        self.assertEqual(stopped, free.split(free[3])[0])


if __name__ == "__main__":
    unittest.main()
