"""gramian.quantize() on models that only torch knows."""
import json
import unittest
import warnings

import torch
from safetensors_reader import load
from torch.nn import functional as F

import gramian
from support import Decoder, TestCase, snapshot, token_rows


def quantize(model, output, rows=None, **options):
    options = {"quiet": True, "mse": 0.0, **options}
    return gramian.quantize(model, token_rows() if rows is None else rows, output=output, **options)


class PlainModel(TestCase):
    def test_writes_what_readers_unpack_and_leaves_the_model_alone(self):
        model = Decoder().train()
        before = snapshot(model)
        report = quantize(model, self.folder / "out")
        self.assert_same_model(before, model)
        self.assertEqual(report["unhooked"], [])
        self.assertEqual(len(report["modules"]), 14)
        # q, k, v read one tensor, so do gate and up.
        self.assertEqual(report["shared_inputs"]["sums"], 2 * 4)
        tensors = load(self.folder / "out")
        self.assertIn("blocks.0.attention.q_proj.B", tensors)
        self.assertNotIn("blocks.0.attention.q_proj.weight", tensors)
        for name in ("embed.weight", "norm.weight", "lm_head.weight", "blocks.1.first.bias"):
            self.assertTrue(torch.equal(tensors[name], model.state_dict()[name]), name)
        config = json.loads((self.folder / "out" / "config.json").read_text())
        self.assertEqual(config["architectures"], ["Decoder"])
        self.assertEqual(config["quantization_config"]["quant_method"], "qqq")

    def test_kept_weights_are_those_that_readers_see(self):
        model = Decoder()
        quantize(model, self.folder / "out", keep=True)
        tensors = load(self.folder / "out")
        for name in ("blocks.0.attention.o_proj", "blocks.1.mlp.up_proj"):
            parts = {part: tensors[f"{name}.{part}"] for part in ("B", "s_channel", "s_group", "bias") if f"{name}.{part}" in tensors}
            weight = model.get_submodule(name).weight
            self.assertTrue(torch.equal(gramian.unpack_qqq(parts, *weight.shape), weight), name)

    def test_first_layer_hessian_is_of_its_input(self):
        model = Decoder(layers=1)
        inputs = []
        handle = model.blocks[0].attention.q_proj.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        with torch.no_grad():
            model(token_rows())
        handle.remove()
        sums = gramian.HessianAccumulator(128)
        for part in inputs[0].split(8):
            sums.add(part)
        weight = model.blocks[0].attention.q_proj.weight.detach()
        solved = gramian.solve_qqq(weight, sums.merge(), tokens=sums.tokens, mse=0.0)
        quantize(model, self.folder / "out")
        tensors = load(self.folder / "out")
        for part, value in gramian.pack_qqq(solved, weight).items():
            self.assertTrue(torch.equal(tensors[f"blocks.0.attention.q_proj.{part}"], value), part)

    def test_later_modules_see_the_quantized_ones_before_them(self):
        for order, same in (("subset", False), ("none", True)):
            model, changed = Decoder(), Decoder()
            quantize(model, self.folder / f"a-{order}", sequential=order, bits=4)
            with torch.no_grad():  # another grid for q, k, v alone: only what comes behind may change
                quantize(changed, self.folder / f"b-{order}", sequential=order, dynamic={r"+:.*[qkv]_proj": {"mse": 2.4}})
            a, b = load(self.folder / f"a-{order}"), load(self.folder / f"b-{order}")
            self.assertFalse(torch.equal(a["blocks.0.attention.q_proj.B"], b["blocks.0.attention.q_proj.B"]))
            name = "blocks.1.mlp.down_proj.B"
            self.assertEqual(torch.equal(a[name], b[name]), same, order)

    def test_sharing_changes_no_byte(self):
        quantize(Decoder(), self.folder / "shared")
        report = quantize(Decoder(), self.folder / "alone", shared_inputs=False)
        self.assertEqual(report["shared_inputs"]["sums"], 14)
        self.assertEqual(self.weights(self.folder / "shared"), self.weights(self.folder / "alone"))

    def test_rows_of_several_lengths_need_no_padding(self):
        rows = [row[:length].tolist() for row, length in zip(token_rows(), [24] * 6 + [7] * 6 + [24] * 4)]
        report = quantize(Decoder(), self.folder / "out", rows)
        self.assertEqual(report["tokens"], 24 * 10 + 7 * 6)
        self.assertEqual(report["batches"], 3)

    def test_without_the_scan(self):
        """An unfinished job still knows its weights."""
        report = quantize(Decoder(), self.folder / "out", skip_scan=True)
        self.assertFalse(report["source_scan"])
        quantize(Decoder(), self.folder / "scanned")
        self.assertEqual(self.weights(self.folder / "out"), self.weights(self.folder / "scanned"))

        def stop(*_):
            if (self.folder / "stopped.journal" / "layer-00000.json").exists():
                raise KeyboardInterrupt

        model = Decoder()
        handle = model.blocks[1].register_forward_pre_hook(stop)
        with self.assertRaises(KeyboardInterrupt):
            quantize(model, self.folder / "stopped", skip_scan=True)
        handle.remove()
        with self.assertRaisesRegex(gramian.GramianError, "weights: .* changed"):
            quantize(Decoder(seed=1), self.folder / "stopped", skip_scan=True)
        self.assertEqual(quantize(model, self.folder / "stopped", skip_scan=True)["resumed_at_layer"], 1)

    def test_the_head(self):
        report = quantize(Decoder(vocab=128), self.folder / "out", method="gptq", group_size=32, lm_head_bits=8)
        self.assertIn("lm_head", [module["name"] for module in report["modules"]])
        self.assertIn("lm_head.qweight", load(self.folder / "out"))

    def test_formats(self):
        for format, mark in (("gptq", "qweight"), ("gptq_v2", "qweight"), ("compressed-tensors", "weight_packed")):
            quantize(Decoder(layers=1), self.folder / format, method="gptq", format=format, bits=4, group_size=64)
            self.assertIn(f"blocks.0.mlp.down_proj.{mark}", load(self.folder / format))

    def test_local_hessians(self):
        """NVFP4's scales are searched by what the modules receive, experts each by its own rows."""
        for name, model in (("dense", Decoder(layers=1)), ("mixture", Decoder(layers=1, experts=4))):
            report = quantize(model, self.folder / name, method="local_hessian")
            plain = quantize(model, self.folder / f"{name}-plain", method="nvfp4_mse")
            self.assertEqual([module["fallback"] for module in report["modules"]], [None] * len(report["modules"]))
            self.assertEqual(len(report["modules"]), len(plain["modules"]))
            found, without = load(self.folder / name), load(self.folder / f"{name}-plain")
            self.assertEqual(set(found), set(without))
            scales = [part for part in found if part.endswith("weight_scale")]
            self.assertEqual(len(scales), len(report["modules"]))
            self.assertTrue(all(not torch.equal(found[part].view(torch.uint8), without[part].view(torch.uint8)) for part in scales))
            counts = {module["samples"] for module in report["modules"]}
            self.assertEqual(len(counts) > 1, name == "mixture")


class Failures(TestCase):
    def test_everything_wrong_is_said_before_the_model_runs(self):
        model = Decoder()
        before = snapshot(model)
        ran = []
        handle = model.register_forward_pre_hook(lambda *_: ran.append(1))
        with self.assertRaises(gramian.GramianError) as caught:
            quantize(model, self.folder / "out", bits=5, group_sise=3, method="magic")
        handle.remove()
        for word in ("bits", "group_sise", "magic"):
            self.assertIn(word, str(caught.exception))
        self.assertEqual(ran, [])
        self.assert_same_model(before, model)
        self.assertFalse((self.folder / "out").exists())

    def test_a_failing_layer_leaves_the_model_alone_and_the_job_goes_on(self):
        quantize(Decoder(), self.folder / "whole")
        model = Decoder()
        before = snapshot(model)
        forward, calls = type(model.blocks[1]).forward, []

        def fails(block, hidden):
            if block is model.blocks[1]:
                calls.append(1)
                if len(calls) == 4:  # two batches of the probe, and it is in work
                    raise ZeroDivisionError("the layer broke")
            return forward(block, hidden)

        type(model.blocks[1]).forward = fails
        try:
            with self.assertRaises(ZeroDivisionError):
                quantize(model, self.folder / "out")
        finally:
            type(model.blocks[1]).forward = forward
        self.assert_same_model(before, model)
        self.assertFalse((self.folder / "out").exists())
        report = quantize(model, self.folder / "out")
        self.assertEqual(report["resumed_at_layer"], 1)
        self.assertEqual(self.weights(self.folder / "out"), self.weights(self.folder / "whole"))

    def test_not_finite_activations_are_named(self):
        model = Decoder()
        with torch.no_grad():
            model.blocks[1].first.weight[3] = float("inf")
        with self.assertRaisesRegex(gramian.GramianError, "blocks.1.first.weight"):
            quantize(model, self.folder / "out")

    def test_layers_that_are_no_chain_are_refused(self):
        class Skipping(Decoder):
            def forward(self, ids):
                hidden = self.embed(ids)
                for block in self.blocks:
                    hidden = hidden + block(hidden)
                return self.lm_head(hidden)

        model = Skipping()
        before = snapshot(model)
        with self.assertRaisesRegex(gramian.GramianError, "chain"):
            quantize(model, self.folder / "out")
        self.assert_same_model(before, model)

    def test_layers_are_named_where_they_are_not_found(self):
        model = Decoder()
        with self.assertRaisesRegex(gramian.GramianError, "no module 'layers'"):
            quantize(model, self.folder / "out", layers="layers")
        self.assertEqual(len(quantize(model, self.folder / "out", layers="blocks")["modules"]), 14)
        self.assertEqual(len(quantize(model, self.folder / "again", layers=model.blocks)["modules"]), 14)
        with self.assertRaisesRegex(gramian.GramianError, "layers="):
            quantize(torch.nn.Linear(4, 4), self.folder / "none")

    def test_what_no_hook_reaches_is_listed(self):
        model = Decoder(layers=1)
        model.blocks[0].mlp.extra = torch.nn.Parameter(torch.randn(128, 128))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            report = quantize(model, self.folder / "out")
        self.assertEqual(report["unhooked"], ["blocks.0.mlp.extra"])
        self.assertTrue(any("blocks.0.mlp.extra" in str(warning.message) for warning in caught))


class Experts(TestCase):
    def test_stacks_are_taken_apart_and_put_back(self):
        model = Decoder(layers=1, experts=4)
        before = snapshot(model)
        report = quantize(model, self.folder / "out")
        self.assert_same_model(before, model)
        names = {module["name"] for module in report["modules"]}
        self.assertTrue({f"blocks.0.mlp.experts.{e}.{p}_proj" for e in range(4) for p in ("gate", "up", "down")} <= names)
        self.assertNotIn("blocks.0.mlp.router", names)
        tensors = load(self.folder / "out")
        self.assertNotIn("blocks.0.mlp.experts.gate_up_proj", tensors)
        samples = {module["name"]: module["samples"] for module in report["modules"]}
        self.assertEqual(sum(samples[f"blocks.0.mlp.experts.{e}.gate_proj"] for e in range(4)), 2 * 16 * 24)

    def test_rows_of_an_expert_are_those_sent_to_it(self):
        model = Decoder(layers=1, experts=4)
        report = quantize(model, self.folder / "out", sequential="none", keep=True)
        fresh = Decoder(layers=1, experts=4)
        inputs = []
        handle = fresh.blocks[0].mlp.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        with torch.no_grad():
            for part in token_rows().split(8):
                fresh(part)
        handle.remove()
        sums = gramian.HessianAccumulator(128)
        for part in inputs:
            x = part.reshape(-1, 128)
            chosen = fresh.blocks[0].mlp.router(x).softmax(-1).topk(2, -1).indices
            sums.add(x[torch.where(chosen == 2)[0]].detach())
        entry = next(module for module in report["modules"] if module["name"] == "blocks.0.mlp.experts.2.up_proj")
        self.assertEqual(entry["samples"], sums.tokens)
        weight = fresh.blocks[0].mlp.experts.gate_up_proj[2, 256:].detach()
        parts = gramian.pack_qqq(gramian.solve_qqq(weight, sums.merge(), tokens=sums.tokens, mse=0.0), weight)
        tensors = load(self.folder / "out")
        for part, value in parts.items():
            self.assertTrue(torch.equal(tensors[f"blocks.0.mlp.experts.2.up_proj.{part}"], value), part)

    def test_kept_experts_stand_in_their_stacks(self):
        model = Decoder(layers=1, experts=4)
        original = model.blocks[0].mlp.experts.down_proj.detach().clone()
        quantize(model, self.folder / "out", keep=True)
        tensors = load(self.folder / "out")
        name = "blocks.0.mlp.experts.1.down_proj"
        parts = {part: tensors[f"{name}.{part}"] for part in ("B", "s_channel", "s_group")}
        kept = model.blocks[0].mlp.experts.down_proj[1]
        self.assertTrue(torch.equal(gramian.unpack_qqq(parts, *kept.shape), kept))
        self.assertFalse(torch.equal(original[1], kept))

    def test_sums_keep_to_memory(self):
        """In parts, for each of which the layer's batches run again, to the same bytes; and a refusal says what would do."""
        runs = []

        def job(output, **options):
            model = Decoder(layers=1, experts=6, inner=2048)
            handle = model.blocks[0].register_forward_pre_hook(lambda *_: runs.append(1))
            begin = len(runs)
            quantize(model, self.folder / output, group_size=-1, batch_size=16, method="gptq", refine=0, **options)
            handle.remove()
            return len(runs) - begin

        whole = job("whole")
        with self.assertRaisesRegex(gramian.GramianError, "memory: the job needs at least") as caught:
            job("small", memory="1MiB")
        self.assertFalse((self.folder / "small.journal").exists())
        least = int(str(caught.exception).split("at least ")[1].split()[0])
        self.assertGreater(job("parts", memory=f"{least + 16}MiB"), whole)
        self.assertEqual(self.weights(self.folder / "whole"), self.weights(self.folder / "parts"))
        with self.assertRaisesRegex(gramian.GramianError, "no size|not a size"):
            job("lots", memory="lots")

    def test_transposed_stacks_in_one_product(self):
        class Together(torch.nn.Module):
            """Llama 4's form: every expert's rows in one product, zeros where it has none."""

            def __init__(self):
                super().__init__()
                self.router = torch.nn.Linear(128, 2, bias=False)
                self.experts = torch.nn.Module()
                self.experts.up_proj = torch.nn.Parameter(torch.randn(2, 128, 256) / 11)
                self.experts.down_proj = torch.nn.Parameter(torch.randn(2, 256, 128) / 16)

            def forward(self, hidden):
                x = hidden.reshape(-1, 128)
                chosen = F.one_hot(self.router(x).argmax(-1), 2).T.unsqueeze(-1)
                inner = F.relu(torch.bmm(x[None] * chosen, self.experts.up_proj))
                return torch.bmm(inner, self.experts.down_proj).sum(0).view_as(hidden)

        model = Decoder(layers=1)
        model.blocks[0].mlp = Together()
        before = snapshot(model)
        report = quantize(model, self.folder / "out")
        self.assert_same_model(before, model)
        samples = {module["name"]: module["samples"] for module in report["modules"]}
        self.assertEqual(sum(samples[f"blocks.0.mlp.experts.{e}.up_proj"] for e in range(2)), 16 * 24)
        entry = next(module for module in report["modules"] if module["name"] == "blocks.0.mlp.experts.0.up_proj")
        self.assertEqual((entry["out_features"], entry["in_features"]), (256, 128))


if __name__ == "__main__":
    unittest.main()
