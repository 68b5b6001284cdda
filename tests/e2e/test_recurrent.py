"""Architectures with a delta rule: each from its folder to QQQ and back; rows longer than a chunk; the names of other files."""
import math
import unittest

import gramian_e2e as e2e
from gramian_e2e import random_rows, read_model, read_safetensors, write_rows
from tiny_recurrent import RECURRENT, TinyRecurrent
from tiny_streams import STREAM_MODELS, TinyStreams


class Recurrent(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # Rows of more than one chunk of 64 tokens, of several lengths.
        rows = random_rows(4, 100)
        cls.rows = write_rows(cls.top / "rows.safetensors", rows[:2] + [rows[2][:70], rows[3][:5]], pad="left")

    def logits(self, model, *flags):
        self.report("logits", model, "--input", self.rows, "--output", self.path("logits.safetensors"), *flags)
        return read_safetensors(self.path("logits.safetensors"))["logits"].values()

    def there_and_back(self, tiny):
        model, out = tiny.write(self.path("model")), self.path("out")
        report = self.quantize(model, out, calibration=self.rows)
        self.assertEqual(sorted(m["name"] for m in report["modules"]), sorted(tiny.linears))
        self.assertEqual(report["fallbacks"], 0)
        written, packed = read_model(out), e2e.expected_tensors(tiny.linears, 128)
        self.assertEqual({n: (written[n].dtype, written[n].shape) for n in packed}, packed)
        kept = {n: item for n, item in tiny.tensors.items() if n not in tiny.replaced}
        self.assertEqual({n: item for n, item in written.items() if n not in packed}, kept)
        inspected = self.report("inspect", model)
        self.assertEqual([m["name"] for m in inspected["modules"]], list(tiny.linears))
        loss = self.report("eval", out, "--rows", self.rows, "--reference", model)
        self.assertTrue(0 < loss["kl_mean"] < 0.5, loss)
        together, alone = (self.logits(out, "--dtype", "float32", "--batch", batch) for batch in (8, 1))
        self.assertTrue(all(map(math.isfinite, together)))
        self.assertLess(max(abs(a - b) for a, b in zip(together, alone)), 1e-3)

    def test_every_architecture(self):
        for tiny in [TinyRecurrent(kind) for kind in RECURRENT] + [TinyStreams(kind) for kind in STREAM_MODELS]:
            with self.subTest(tiny.kind):
                self.folder = self.path(tiny.kind)
                self.folder.mkdir()
                self.there_and_back(tiny)
                self.folder = self.folder.parent

    def test_calibration_orders(self):
        tiny = TinyRecurrent("qwen3_5_text")
        model = tiny.write(self.path("model"))
        self.quantize(model, self.path("lanes1"), calibration=self.rows)
        self.quantize(model, self.path("again"), calibration=self.rows)
        self.assertEqual(read_model(self.path("lanes1")), read_model(self.path("again")))
        for order in ("layer", "none"):
            report = self.quantize(model, self.path(order), "--sequential", order, calibration=self.rows)
            self.assertEqual(len(report["modules"]), len(tiny.linears))

    def test_streams_between_layers(self):
        """Whatever carries several streams, and the keys that one layer picks for the next, to the next layer."""
        for kind in STREAM_MODELS:
            tiny = TinyStreams(kind)
            model = tiny.write(self.path(kind))
            self.quantize(model, self.path(kind + "suspend"), "--activations", "suspend", "--batch", 2, calibration=self.rows)
            for way in ("spill", "replay"):
                self.quantize(model, self.path(kind + way), "--activations", way, "--batch", 2, "--threads", 2,
                              calibration=self.rows)
                self.assertEqual(read_model(self.path(kind + way)), read_model(self.path(kind + "suspend")))
            for order in ("layer", "none"):
                report = self.quantize(model, self.path(kind + order), "--sequential", order, calibration=self.rows)
                self.assertEqual(len(report["modules"]), len(tiny.linears))

    def test_settings_as_the_makers_of_kimi_linear_nest_them(self):
        plain, nested = TinyRecurrent("kimi_linear"), TinyRecurrent("kimi_linear")
        for key in ("layer_types", "mlp_layer_types", "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim"):
            del nested.config[key]
        nested.config.update(first_k_dense_replace=1, linear_attn_config={
            "full_attn_layers": [2], "kda_layers": [1], "head_dim": 64, "num_heads": 2, "short_conv_kernel_size": 4})
        self.assertEqual(self.logits(plain.write(self.path("plain"))), self.logits(nested.write(self.path("nested"))))

    def test_ngrams_that_do_not_fit_their_table(self):
        tiny = TinyStreams("qwen4_exp_text")
        name = next(name for name in tiny.tensors if name.endswith("ngram_heads_offsets"))
        tiny.tensors[name] = e2e.tensor("I64", [4], [0, 41, 84, 1 << 40])
        self.refused_job(tiny.write(self.path("offsets")), calibration=self.rows,
                         says=("ngram_embedding", str(1 << 40)))
        tiny.tensors[name] = e2e.tensor("BF16", [4], [0, 41, 84, 131])
        self.refused_job(tiny.write(self.path("types")), calibration=self.rows, says=("ngram_heads_offsets", "I64"))

    def test_settings_that_are_refused(self):
        for change, says in (({"hidden_act": "gelu"}, "beside linear attention"),
                             ({"linear_num_key_heads": 3}, "linear_num_key_heads"),
                             ({"layer_types": ["linear_attention", "mamba"]}, "mamba"),
                             ({"linear_conv_kernel_dim": 3}, "conv1d.weight")):
            tiny = TinyRecurrent("qwen3_5_text")
            tiny.config.update(change)
            self.refused_job(tiny.write(self.path(says)), says=(says,))


if __name__ == "__main__":
    unittest.main()
