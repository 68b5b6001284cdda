"""gramian.quantize() on models of transformers: the bundled one beside the engine's own forward, mixtures, Conv1D."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import torch

import gramian
from safetensors_reader import load, load_file, share_of_other_codes
from support import TINYSTORIES, TestCase, needs_transformers, snapshot, token_rows, transformers

BINARY = os.environ.get("GRAMIAN_BINARY", "gramian")


def write_rows(path, ids):
    data = ids.to(torch.int64).contiguous()
    header = json.dumps({"input_ids": {"dtype": "I64", "shape": list(data.shape), "data_offsets": [0, data.numel() * 8]}}).encode()
    header += b" " * (-len(header) % 8)
    pathlib.Path(path).write_bytes(len(header).to_bytes(8, "little") + header + data.numpy(force=True).tobytes())


def native(*arguments):
    process = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, check=False)
    if process.returncode != 0:
        raise AssertionError(process.stderr)
    return process


@needs_transformers
class Bundled(TestCase):
    """Hooks and the engine's own forward on models/tinystories, in fp32."""

    @classmethod
    def setUpClass(cls):
        cls.model = transformers.AutoModelForCausalLM.from_pretrained(TINYSTORIES, dtype=torch.float32).eval()
        cls.tokenizer = transformers.AutoTokenizer.from_pretrained(TINYSTORIES)
        text = (TINYSTORIES / "calibration.txt").read_text()
        cls.rows = torch.tensor(gramian.calibration_rows([text], tokenizer=cls.tokenizer, sequence_length=64, samples=16).ids)
        # In fp32, so that both have the same weights to start from.
        cls.source = pathlib.Path(tempfile.mkdtemp(prefix="gramian-test-"))
        cls.addClassCleanup(shutil.rmtree, cls.source, ignore_errors=True)
        cls.model.save_pretrained(cls.source)
        cls.tokenizer.save_pretrained(cls.source)
        cls.config = json.loads((cls.source / "config.json").read_text())

    def native(self, output, *options):
        rows = self.folder / "rows.safetensors"
        write_rows(rows, self.rows)
        native("quantize", self.source, "-o", output, "--calibration", rows, "--dtype", "float32", "--quiet", *options)

    def quantize(self, output, **options):
        return gramian.quantize(self.model, self.rows, output=output, quiet=True, **options)

    def test_same_statistics_same_bytes(self):
        statistics = self.folder / "statistics.safetensors"
        self.native(self.folder / "own", "--sequential", "none", "--statistics", statistics)
        before = snapshot(self.model)
        self.quantize(self.folder / "hooks", sequential="none", statistics=statistics, config=self.config)
        self.assert_same_model(before, self.model)
        self.assertEqual(self.weights(self.folder / "own"), self.weights(self.folder / "hooks"))

    def test_hessians_and_codes_agree_with_the_engines_forward(self):
        files = {}
        for name, run in (("own", self.native), ("hooks", None)):
            files[name] = self.folder / f"{name}.safetensors"
        self.native(self.folder / "own", "--sequential", "none", "--statistics", files["own"])
        self.quantize(self.folder / "hooks", sequential="none", statistics=files["hooks"])
        own, hooks = load_file(files["own"]), load_file(files["hooks"])
        self.assertEqual(set(own), set(hooks))
        compared = 0
        for name, h in own.items():
            if h.dim() != 2 or h.shape[0] != h.shape[1] or not h.is_floating_point():
                continue
            difference = (h - hooks[name]).abs().max() / h.diag().mean()
            self.assertLess(difference, 1e-5, name)
            compared += 1
        self.assertGreater(compared, 10)

        self.assertLess(share_of_other_codes(self.folder / "own", self.folder / "hooks"), 0.005)
        # Where each layer sees the quantized ones before it, one code that differs moves everything behind it, as it does between two
        # orders of summation of one forward: only the first layer can be compared.
        self.native(self.folder / "own-subset")
        self.quantize(self.folder / "hooks-subset")
        self.assertLess(share_of_other_codes(self.folder / "own-subset", self.folder / "hooks-subset", "model.layers.0."), 0.005)

    def test_local_hessians_agree_with_the_engines_forward(self):
        self.native(self.folder / "own", "--method", "local_hessian")
        self.quantize(self.folder / "hooks", method="local_hessian")
        own, hooks = load(self.folder / "own"), load(self.folder / "hooks")
        self.assertEqual(set(own), set(hooks))
        parts = [name for name in own if name.startswith("model.layers.0.") and name.endswith(("weight_packed", "weight_scale"))]
        self.assertEqual(len(parts), 14)
        other = sum((own[name].view(torch.uint8) != hooks[name].view(torch.uint8)).sum().item() for name in parts)
        self.assertLess(other / sum(own[name].numel() for name in parts), 0.005)

    def test_ten_lines_give_checkpoints_that_load(self):
        text = (TINYSTORIES / "calibration.txt").read_text()
        stories = [story for story in text.split("<|endoftext|>") if story.strip()][:24]
        prompt = self.tokenizer("Once upon a time").input_ids
        with torch.no_grad():
            expected = self.model(torch.tensor([prompt])).logits[0]
        for method, format in (("qqq", "qqq"), ("gptq", "gptq"), ("gptq", "compressed-tensors")):
            before = snapshot(self.model)
            folder = self.folder / format
            gramian.quantize(self.model, stories, tokenizer=self.tokenizer, output=folder, method=method, format=format, quiet=True)
            self.assert_same_model(before, self.model)
            native("verify", folder, "--quiet")
            logits = gramian.Model(folder, dtype="float32").logits(prompt)
            self.assertLess((logits - expected).norm() / expected.norm(), 0.2, format)
            self.assertEqual(transformers.AutoTokenizer.from_pretrained(folder)("Once upon").input_ids,
                             self.tokenizer("Once upon").input_ids)

    def test_a_checkpoints_layer_runs_as_a_module(self):
        self.quantize(self.folder / "out", samples=4)
        name = "model.layers.0.mlp.down_proj"
        layer = gramian.W4A8Linear.from_checkpoint(self.folder / "out", name)
        linear = self.model.get_submodule(name)
        self.assertEqual((layer.in_features, layer.out_features), (linear.in_features, linear.out_features))
        x = torch.randn(9, layer.in_features)
        self.assertLess((layer(x) - linear(x)).norm() / linear(x).norm(), 0.25)
        with self.assertRaisesRegex(gramian.GramianError, "no QQQ module"):
            gramian.W4A8Linear.from_checkpoint(self.folder / "out", "model.norm")


@needs_transformers
class Families(TestCase):
    def check(self, model, names, absent=()):
        before = snapshot(model)
        report = gramian.quantize(model.eval(), token_rows(vocab=90), output=self.folder / "out", quiet=True, mse=0.0)
        self.assert_same_model(before, model)
        tensors = load(self.folder / "out")
        for name in names:
            self.assertIn(f"{name}.B", tensors)
        for name in absent:
            self.assertNotIn(name, tensors)
        return report, tensors

    def test_mixtures_of_stacked_experts(self):
        shape = dict(hidden_size=128, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=64, vocab_size=96)
        torch.manual_seed(0)
        config = transformers.Qwen3MoeConfig(**shape, moe_intermediate_size=128, intermediate_size=256, num_experts=4,
                                             num_experts_per_tok=2, decoder_sparse_step=1, mlp_only_layers=[])
        model = transformers.Qwen3MoeForCausalLM(config).eval()
        report, tensors = self.check(model, [f"model.layers.0.mlp.experts.{e}.{p}_proj" for e in range(4) for p in ("gate", "up", "down")],
                                     ["model.layers.0.mlp.experts.gate_up_proj"])
        self.assertIn("model.layers.0.mlp.gate.weight", tensors)
        self.assertEqual(report["unhooked"], [])
        # The engine's own forward knows this family: what it reads back is near the original.
        ids = token_rows(vocab=90)[0].tolist()
        logits = gramian.Model(self.folder / "out", dtype="float32").logits(ids)
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0]
        self.assertLess((logits - expected).norm() / expected.norm(), 0.35)

    def test_mixtral_keeps_the_names_of_its_files(self):
        torch.manual_seed(0)
        config = transformers.MixtralConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=1, num_attention_heads=2,
                                            num_key_value_heads=1, vocab_size=96, num_local_experts=2)
        model = transformers.MixtralForCausalLM(config).eval()
        _, tensors = self.check(model, [f"model.layers.0.block_sparse_moe.experts.{e}.{w}" for e in range(2) for w in ("w1", "w2", "w3")])
        self.assertIn("model.layers.0.block_sparse_moe.gate.weight", tensors)
        ids = token_rows(vocab=90)[0].tolist()
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0]
        logits = gramian.Model(self.folder / "out", dtype="float32").logits(ids)
        self.assertLess((logits - expected).norm() / expected.norm(), 0.35)

    def test_gpt_oss_has_pairs_of_columns_and_biases(self):
        torch.manual_seed(0)
        config = transformers.GptOssConfig(hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
                                           num_key_value_heads=1, head_dim=64, vocab_size=96, num_local_experts=2, num_experts_per_tok=1,
                                           layer_types=["sliding_attention", "full_attention"])
        model = transformers.GptOssForCausalLM(config).eval()
        report, _ = self.check(model, ["model.layers.1.mlp.experts.0.gate_proj", "model.layers.1.mlp.experts.1.down_proj"])
        self.assertEqual(report["unhooked"], [])
        ids = token_rows(vocab=90)[0].tolist()
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0]
        logits = gramian.Model(self.folder / "out", dtype="float32").logits(ids)
        self.assertLess((logits - expected).norm() / expected.norm(), 0.35)

    def test_layers_of_several_kinds_get_their_own_arguments(self):
        torch.manual_seed(0)
        config = transformers.Gemma3TextConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2,
                                               num_key_value_heads=1, head_dim=64, vocab_size=96, sliding_window=8,
                                               layer_types=["sliding_attention", "full_attention"])
        model = transformers.Gemma3ForCausalLM(config).eval()
        report, _ = self.check(model, ["model.layers.1.mlp.down_proj"])
        self.assertEqual(report["shared_inputs"]["sums"], 8)
        ids = token_rows(vocab=90)[0].tolist()
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0]
        logits = gramian.Model(self.folder / "out", dtype="float32").logits(ids)
        self.assertLess((logits - expected).norm() / expected.norm(), 0.35)

    def test_conv1d_is_a_linear_layer_the_other_way_round(self):
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=128, n_layer=1, n_head=2, vocab_size=96, n_positions=64)).eval()
        report, tensors = self.check(model, ["transformer.h.0.attn.c_attn", "transformer.h.0.mlp.c_proj"],
                                     ["transformer.h.0.attn.c_attn.weight"])
        sizes = {module["name"]: (module["out_features"], module["in_features"]) for module in report["modules"]}
        self.assertEqual(sizes["transformer.h.0.attn.c_attn"], (384, 128))
        parts = {part: tensors[f"transformer.h.0.mlp.c_fc.{part}"] for part in ("B", "s_channel")}
        weight = model.transformer.h[0].mlp.c_fc.weight.detach().T
        self.assertLess((gramian.unpack_qqq(parts, *weight.shape) - weight).norm() / weight.norm(), 0.2)


if __name__ == "__main__":
    unittest.main()
