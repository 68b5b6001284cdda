"""gramian.quantize(format="gguf"): the live model's file beside the one that `gramian quantize` makes of the saved model."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import torch

import gramian
from safetensors_reader import load
from support import TINYSTORIES, Decoder, TestCase, needs_transformers, snapshot, token_rows, transformers

BINARY = os.environ.get("GRAMIAN_BINARY", "gramian")
SMALL = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, vocab_size=96,
             pad_token_id=0)
MIXED = dict(moe_intermediate_size=128, num_experts=3, num_experts_per_tok=2, decoder_sparse_step=1, mlp_only_layers=[])
# Of each model type that GGUF has names for, a small model's configuration.
FAMILIES = {
    "llama": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": None},
    "mixtral": {"num_local_experts": 3},
    "qwen2": {},
    "qwen2_moe": {**MIXED, "shared_expert_intermediate_size": 128},
    "qwen3": {"head_dim": 64},
    "qwen3_moe": {**MIXED, "head_dim": 64, "norm_topk_prob": True},
    "gemma": {"head_dim": 64},
    "gemma2": {"head_dim": 64, "query_pre_attn_scalar": 64, "attn_logit_softcapping": None},
    "gemma3_text": {"head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 8},
    "phi3": {},
}


def native(*arguments):
    process = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, check=False)
    if process.returncode != 0:
        raise AssertionError(process.stderr)
    return process.stdout


def make(model_type, **options):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **SMALL, **options)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def quantize(model, output, rows=None, **options):
    options = {"method": "rtn", "format": "gguf", "type": "q4_0", "quiet": True, **options}
    options = {key: value for key, value in options.items() if value is not None}
    return gramian.quantize(model, token_rows(vocab=90) if rows is None else rows, output=output, **options)


def blocks(path):
    return {name: (t.type, t.shape, t.data.numpy(force=True).tobytes()) for name, t in gramian.read_gguf(path).tensors.items()}


@needs_transformers
class Bundled(TestCase):
    @classmethod
    def setUpClass(cls):
        cls.source = pathlib.Path(tempfile.mkdtemp(prefix="gramian-test-"))
        cls.addClassCleanup(shutil.rmtree, cls.source, ignore_errors=True)
        cls.tokenizer = transformers.AutoTokenizer.from_pretrained(TINYSTORIES)
        transformers.AutoModelForCausalLM.from_pretrained(TINYSTORIES, dtype=torch.float32).save_pretrained(cls.source)
        cls.tokenizer.save_pretrained(cls.source)
        cls.model = transformers.AutoModelForCausalLM.from_pretrained(cls.source, dtype=torch.float32).eval()
        cls.text = TINYSTORIES / "calibration.txt"

    def native(self, output, *options):
        native("quantize", self.source, "-o", output, "--calibration", self.text, "--sequence-length", 64, "--samples", 16, "--dtype",
               "float32", "--quiet", "--format", "gguf", *options)

    def quantize(self, output, **options):
        return quantize(self.model, output, self.text, tokenizer=self.tokenizer, sequence_length=64, samples=16, **options)

    def test_same_statistics_same_bytes(self):
        """Metadata and tokenizer too: the file does not tell who made it."""
        own, hooks = self.folder / "own.gguf", self.folder / "hooks.gguf"
        before = snapshot(self.model)
        self.quantize(hooks)
        self.native(own, "--method", "rtn", "--type", "q4_0")
        self.assertEqual(own.read_bytes(), hooks.read_bytes())

        statistics = self.folder / "statistics.safetensors"
        self.native(own, "--method", "gptq", "--type", "q2_k", "--sequential", "none", "--statistics", statistics, "--force")
        self.quantize(hooks, method="gptq", type="q2_k", sequential="none", statistics=statistics, force=True)
        self.assertEqual(own.read_bytes(), hooks.read_bytes())

        importance = self.folder / "importance.gguf"
        native("imatrix", self.source, "--calibration", self.text, "-o", importance, "--sequence-length", 64, "--samples", 16, "--quiet")
        native("quantize", self.source, "-o", own, "--method", "imatrix", "--type", "iq2_xxs", "--imatrix", importance, "--quiet", "--force")
        self.quantize(hooks, method="imatrix", type="iq2_xxs", imatrix=importance, force=True)
        self.assertEqual(own.read_bytes(), hooks.read_bytes())
        self.assert_same_model(before, self.model)

    def test_importance_by_hooks(self):
        """Sums of a forward in another order of additions: next to no code differs, and nothing else does."""
        own, hooks = self.folder / "own.gguf", self.folder / "hooks.gguf"
        self.native(own, "--method", "imatrix", "--type", "q4_k_m")
        report = self.quantize(hooks, method="imatrix", type="q4_k_m")
        self.assertEqual(report["sequential"], "none")
        self.assertEqual(report["fallbacks"], 0)
        self.assertEqual(gramian.read_gguf(own).metadata, gramian.read_gguf(hooks).metadata)
        one, two = blocks(own), blocks(hooks)
        self.assertEqual([(name, *item[:2]) for name, item in one.items()], [(name, *item[:2]) for name, item in two.items()])
        differing = sum(a != b for name in one for a, b in zip(one[name][2], two[name][2]))
        self.assertLess(differing / own.stat().st_size, 0.001)
        # Weighted by what the columns carry, it is not plain rounding.
        self.quantize(self.folder / "rtn.gguf", type="q4_k")
        self.assertNotEqual(blocks(self.folder / "rtn.gguf")["blk.0.attn_q.weight"], two["blk.0.attn_q.weight"])

    def test_the_file_is_a_model(self):
        out = self.folder / "out.gguf"
        for method, kind in (("imatrix", "q4_k"), ("gptq", "q4_k"), ("rtn", "q8_0")):
            self.quantize(out, method=method, type=kind, force=True)
            native("verify", out, "--quiet")
            prompt = self.tokenizer("Once upon a time").input_ids
            with torch.no_grad():
                expected = self.model(torch.tensor([prompt])).logits[0]
            logits = gramian.Model(out, dtype="float32").logits(prompt)
            self.assertLess((logits - expected).norm() / expected.norm(), 0.2, method)
        self.assertGreater(len(native("generate", out, "--prompt", "Once upon a time", "--tokens", 8, "--quiet").split()), 3)
        perplexity = [json.loads(native("eval", model, "--text", TINYSTORIES / "heldout.txt", "--samples", 2, "--json", "--quiet"))["perplexity"]
                      for model in (out, self.source)]
        self.assertLess(abs(perplexity[0] / perplexity[1] - 1), 0.02)

    def test_a_stopped_job_goes_on(self):
        whole, out = self.folder / "whole.gguf", self.folder / "out.gguf"
        self.quantize(whole, method="gptq", type="q4_k")
        layer = self.model.model.layers[3]
        calls = []

        def fails(*_):
            calls.append(1)
            if len(calls) == 4:  # two batches of the first pass, and it is in work
                raise ZeroDivisionError("the layer broke")

        handle = layer.register_forward_pre_hook(fails)
        with self.assertRaises(ZeroDivisionError):
            self.quantize(out, method="gptq", type="q4_k")
        handle.remove()
        self.assertFalse(out.exists())
        self.assertEqual(self.quantize(out, method="gptq", type="q4_k")["resumed_at_layer"], 3)
        self.assertEqual(whole.read_bytes(), out.read_bytes())


@needs_transformers
class Families(TestCase):
    def test_every_type_with_names_in_gguf(self):
        """The file of the live model is that of the model which save_pretrained() writes, experts in stacks or not."""
        for model_type, options in FAMILIES.items():
            with self.subTest(model_type):
                model = make(model_type, **options)
                saved = self.folder / model_type
                model.save_pretrained(saved)
                model = transformers.AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32).eval()
                own, hooks = self.folder / f"{model_type}-own.gguf", self.folder / f"{model_type}.gguf"
                native("quantize", saved, "-o", own, "--method", "rtn", "--format", "gguf", "--type", "q4_0", "--quiet")
                report = quantize(model, hooks)
                self.assertEqual(own.read_bytes(), hooks.read_bytes())
                self.assertEqual(report["unhooked"], [])

    def test_importance_of_experts_in_stacks(self):
        """Each is weighted by its own rows; one that no token reached by none."""
        for model_type in ("mixtral", "qwen3_moe"):
            model = make(model_type, **{**FAMILIES[model_type], "num_experts_per_tok": 1})
            router = model.model.layers[1].mlp.gate
            with torch.no_grad():  # one of the two others always wins over the third expert
                router.weight[2] = 0
                router.weight[1] = -router.weight[0]
            before = snapshot(model)
            out = self.folder / f"{model_type}.gguf"
            report = quantize(model, out, method="imatrix", type="q4_k", batch_size=4)
            self.assert_same_model(before, model)
            starved = [module["name"] for module in report["modules"] if module["fallback"]]
            self.assertEqual(len(starved), 3)
            self.assertTrue(all(".layers.1." in name and ".experts.2." in name for name in starved), starved)
            samples = [module["samples"] for module in report["modules"] if ".layers.0." in module["name"] and ".experts." in module["name"]]
            self.assertEqual(sum(samples), 3 * token_rows().numel())
            saved, own = self.folder / model_type, self.folder / "own.gguf"
            model.save_pretrained(saved)
            rows = self.folder / "rows.jsonl"
            rows.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in token_rows(vocab=90).tolist()))
            native("quantize", saved, "-o", own, "--method", "imatrix", "--type", "q4_k", "--calibration", rows, "--batch", 4, "--dtype",
                   "float32", "--quiet", "--force")
            one, two = blocks(own), blocks(out)
            self.assertEqual(set(one), set(two))
            differing = sum(a != b for name in one for a, b in zip(one[name][2], two[name][2]))
            self.assertLess(differing / own.stat().st_size, 0.001)
            ids = token_rows(vocab=90)[0].tolist()
            with torch.no_grad():
                expected = model(torch.tensor([ids])).logits[0]
            logits = gramian.Model(out, dtype="float32").logits(ids)
            self.assertLess((logits - expected).norm() / expected.norm(), 0.35)

    def test_experts_left_alone_have_the_names_of_files(self):
        """In a folder too: an expert that a rule leaves out is found by loaders."""
        model = make("qwen3_moe", **FAMILIES["qwen3_moe"])
        quantize(model, self.folder / "out", format="gptq", type=None, method="gptq", group_size=64, dynamic={r"-:.*layers\.1\.mlp\.experts\.": {}})
        tensors = load(self.folder / "out")
        stack = model.model.layers[1].mlp.experts
        half = stack.gate_up_proj.shape[1] // 2
        self.assertTrue(torch.equal(tensors["model.layers.1.mlp.experts.2.up_proj.weight"], stack.gate_up_proj[2, half:]))
        self.assertTrue(torch.equal(tensors["model.layers.1.mlp.experts.0.down_proj.weight"], stack.down_proj[0]))
        self.assertFalse([name for name in tensors if name.endswith(("gate_up_proj", "experts.down_proj"))])
        native("verify", self.folder / "out", "--quiet")


class Refusals(TestCase):
    def refuse(self, model, says, output="out.gguf", **options):
        ran = []
        handle = model.register_forward_pre_hook(lambda *_: ran.append(1))
        with self.assertRaises(gramian.GramianError) as caught:
            quantize(model, self.folder / output, **options)
        handle.remove()
        self.assertEqual(ran, [], "the model ran before the refusal")
        for word in says:
            self.assertIn(word, str(caught.exception))

    def test_a_model_that_gguf_has_no_names_for(self):
        self.refuse(Decoder(), ["Decoder", "model_type", "gptq or compressed-tensors", "llama"])
        if transformers is not None:
            config = transformers.GPT2Config(n_embd=128, n_layer=1, n_head=2, vocab_size=96, n_positions=64)
            self.refuse(transformers.GPT2LMHeadModel(config), ["GPT2LMHeadModel", '"gpt2"', "gptq or compressed-tensors", "llama"])

    @needs_transformers
    def test_what_the_file_cannot_be(self):
        model = make("llama")
        self.refuse(make("qwen3_moe", **{**FAMILIES["qwen3_moe"], "norm_topk_prob": False}), ["norm_topk_prob"])
        self.refuse(model, [".gguf"], output="out")
        self.refuse(model, ["--format gguf"], format="qqq", type=None, method="qqq")
        self.refuse(model, ["--type"], type=None)
        self.refuse(model, ["q4_x", "q4_k"], type="q4_x")
        (self.folder / "out.gguf").write_bytes(b"mine")
        self.refuse(model, ["exists"])
        self.assertEqual((self.folder / "out.gguf").read_bytes(), b"mine")

    @needs_transformers
    def test_importance_is_for_one_method(self):
        with self.assertRaisesRegex(gramian.GramianError, "takes no importance"):
            quantize(make("llama"), self.folder / "out.gguf", method="gptq", imatrix=self.folder / "importance.gguf")


if __name__ == "__main__":
    unittest.main()
