"""Each piece alone: statistics, solvers, packed layouts, the QQQ layer, codecs, files."""
import copy
import io
import unittest

import torch
from torch import nn
from torch.nn import functional as F

import gramian
from support import TestCase


def rows(count, columns, seed=0):
    return torch.randn(count, columns, generator=torch.Generator().manual_seed(seed))


class Statistics(TestCase):
    def test_hessian_is_twice_the_mean_outer_product(self):
        x = rows(300, 64)
        sums = gramian.HessianAccumulator(64)
        sums.add(x[:100].reshape(4, 25, 64))
        sums.add(x[100:])
        expected = 2 / 300 * x.double().T @ x.double()
        self.assertEqual(sums.tokens, 300)
        self.assertLess((sums.merge() - expected).abs().max(), 1e-5 * expected.diag().mean())

    def test_masked_tokens_do_not_count(self):
        x = rows(40, 32).reshape(2, 20, 32)
        keep = torch.ones(2, 20, dtype=torch.bool)
        keep[1, 10:] = False
        masked, plain = gramian.HessianAccumulator(32), gramian.HessianAccumulator(32)
        masked.add(x, keep)
        plain.add(torch.cat([x[0], x[1, :10]]))
        self.assertEqual(masked.tokens, 30)
        self.assertTrue(torch.equal(masked.merge(), plain.merge()))

    def test_lanes_merge_into_one_sum(self):
        x = rows(64, 32)
        two = gramian.HessianAccumulator(32, lanes=2)
        two.add(x[:32], lane=0)
        two.add(x[32:], lane=1)
        self.assertLess((two.merge() - 2 / 64 * x.T @ x).abs().max(), 1e-5)

    def test_values_that_are_not_finite_are_refused_with_their_row(self):
        x = rows(8, 32)
        x[5, 3] = float("nan")
        sums = gramian.HessianAccumulator(32)
        with self.assertRaises(gramian.GramianError) as caught:
            sums.add(x)
        self.assertEqual(caught.exception.kind, "numerical")
        self.assertIn("5", str(caught.exception))
        self.assertEqual(sums.tokens, 0)
        self.assertIsInstance(caught.exception, ValueError)
        self.assertIsInstance(caught.exception, RuntimeError)

    def test_importance_is_the_sum_of_squares(self):
        x = rows(50, 16)
        sums = gramian.ImatrixAccumulator(16)
        sums.add(x)
        self.assertTrue(torch.allclose(sums.merge(), x.double().square().sum(0)))

    def test_convolutions_multiply_their_flattened_weight_with_their_rows(self):
        torch.manual_seed(4)
        for module, shape in ((nn.Conv1d(8, 6, 3, stride=2, padding=1), (2, 8, 20)),
                              (nn.Conv1d(8, 8, 4, padding=3, groups=8), (2, 8, 9)),
                              (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)), (2, 4, 9, 7)),
                              (nn.Conv2d(4, 6, 3, padding="same", dilation=2, groups=2), (2, 4, 9, 7))):
            x = torch.randn(shape)
            rows_of_it = gramian.convolution_rows(module, x)
            out, groups = module(x), module.groups
            weight = module.weight.flatten(1).reshape(groups, -1, rows_of_it.shape[1])
            places = rows_of_it.reshape(shape[0], groups, -1, rows_of_it.shape[1])
            found = torch.einsum("bgpk,gnk->bgnp", places, weight).reshape(out.shape) + module.bias.view(1, -1, *[1] * (x.dim() - 2))
            self.assertLess((found - out).abs().max(), 1e-5, module)

    def test_a_convolution_is_solved_like_a_linear_layer(self):
        x, module = torch.randn(2, 16, 24, 24, generator=torch.Generator().manual_seed(5)).cumsum(3), nn.Conv2d(16, 32, 4, bias=False)
        sums = gramian.HessianAccumulator(256)
        sums.add(gramian.convolution_rows(module, x))
        weight, errors = module.weight.detach().flatten(1), []
        for solved in (gramian.solve_qqq(weight, sums.merge(), tokens=sums.tokens), gramian.round_to_nearest(weight, bits=4)):
            errors.append((F.conv2d(x, solved.weight().reshape(module.weight.shape)) - module(x)).square().sum())
        self.assertLess(errors[0], 0.5 * errors[1])

    def test_convolutions_that_have_no_such_rows_are_refused(self):
        for module, shape in ((nn.Linear(8, 8), (2, 8, 9)), (nn.Conv1d(8, 8, 3, padding=1, padding_mode="circular"), (2, 8, 9)),
                              (nn.Conv1d(8, 8, 4, padding="same"), (2, 8, 9)), (nn.Conv1d(8, 8, 12), (2, 8, 9)),
                              (nn.Conv1d(9, 9, 3, groups=9), (2, 8, 9)), (nn.Conv1d(8, 8, 3), (8, 9))):
            with self.assertRaises(gramian.GramianError, msg=str(module)):
                gramian.convolution_rows(module, torch.randn(shape))


class Solvers(TestCase):
    def setUp(self):
        super().setUp()
        self.weight = rows(128, 256, 1) / 16
        self.x = rows(512, 256, 2) @ torch.diag(torch.linspace(0.1, 3, 256))
        sums = gramian.HessianAccumulator(256)
        sums.add(self.x)
        self.hessian, self.tokens = sums.merge(), sums.tokens

    def loss(self, weight):
        error = (self.weight - weight).double()
        return (error @ self.hessian.double() * error).sum().item()

    def test_gptq_beats_rounding_and_options_change_it(self):
        rounded = gramian.round_to_nearest(self.weight, bits=4, group_size=128)
        solved = gramian.solve_gptq(self.weight, self.hessian, tokens=self.tokens, bits=4, group_size=128)
        self.assertLess(self.loss(solved.weight()), 0.7 * self.loss(rounded.weight()))
        for options in ({"bits": 8}, {"group_size": 32}, {"sym": False}, {"desc_act": True, "act_group_aware": False},
                        {"damp_percent": 0.5}, {"mse": 0.0}, {"refine": 0}, {"static_groups": True}):
            other = gramian.solve_gptq(self.weight, self.hessian, **{"bits": 4, "group_size": 128, **options})
            self.assertFalse(torch.equal(other.weight(), solved.weight()), options)
        self.assertIsNone(solved.zero)
        self.assertIsNotNone(gramian.solve_gptq(self.weight, self.hessian, sym=False).zero)

    def test_unknown_options_are_named(self):
        with self.assertRaisesRegex(gramian.GramianError, "group_sise.*group_size"):
            gramian.solve_gptq(self.weight, self.hessian, group_sise=128)
        with self.assertRaisesRegex(gramian.GramianError, "hessian"):
            gramian.solve_gptq(self.weight, self.hessian[:10])

    def test_gptq_packs_and_unpacks(self):
        for format in ("gptq", "gptq_v2", "compressed-tensors"):
            solved = gramian.solve_gptq(self.weight, self.hessian, format=format, bits=4, group_size=64)
            parts = gramian.pack(solved, self.weight, format=format, bits=4, group_size=64)
            back = gramian.unpack(parts, 128, 256, format=format, bits=4, group_size=64)
            self.assertLess((back - solved.weight()).abs().max(), 1e-3 * self.weight.abs().max(), format)

    def test_qqq_packs_runs_and_stores(self):
        for group_size in (128, -1):
            solved = gramian.solve_qqq(self.weight, self.hessian, tokens=self.tokens, group_size=group_size)
            bias = rows(1, 128, 3)[0]
            parts = gramian.pack_qqq(solved, self.weight, bias=bias)
            back = gramian.unpack_qqq(parts, 128, 256)
            self.assertLess(self.loss(back), 4 * self.loss(solved.weight()) + 1e-6)
            layer = gramian.W4A8Linear.from_parts(parts)
            self.assertEqual((layer.in_features, layer.out_features), (256, 128))
            y, exact = layer(self.x[:32]), F.linear(self.x[:32], back, bias.half().float())
            self.assertLess((y - exact).norm() / exact.norm(), 0.02)
            self.assertEqual(layer(self.x[:6].reshape(2, 3, 256).bfloat16()).dtype, torch.bfloat16)
            # As any module: copied, saved, loaded.
            self.assertTrue(torch.equal(copy.deepcopy(layer)(self.x[:4]), layer(self.x[:4])))
            file = io.BytesIO()
            torch.save(layer.state_dict(), file)
            file.seek(0)
            other = gramian.W4A8Linear(*(torch.zeros_like(p) if p is not None else None
                                         for p in (layer.B, layer.s_channel + 1, layer.s_group, layer.bias)))
            other.load_state_dict(torch.load(file, weights_only=True))
            self.assertTrue(torch.equal(other(self.x[:4]), layer(self.x[:4])))

    def test_damaged_parts_are_refused(self):
        parts = gramian.pack_qqq(gramian.solve_qqq(self.weight, self.hessian), self.weight)
        parts["s_channel"] = parts["s_channel"][:, :64]
        with self.assertRaises(gramian.GramianError) as caught:
            gramian.unpack_qqq(parts, 128, 256, name="model.q")
        self.assertEqual(caught.exception.kind, "corrupt_data")
        self.assertIn("model.q", str(caught.exception))


class Files(TestCase):
    def test_every_codec_decodes_what_it_encodes(self):
        weight, importance = rows(4, 512), rows(1, 512, 5)[0].square() + 0.01
        for name in gramian.codec_names():
            data = gramian.encode(weight, name, importance)
            back = gramian.decode(data, name)
            self.assertEqual(back.shape, weight.shape)
            self.assertLess((back - weight).norm() / weight.norm(), 0.6, name)
        self.assertTrue(torch.equal(gramian.decode(gramian.encode(weight, "F32"), "F32"), weight))
        self.assertFalse(torch.equal(gramian.encode(weight, "Q4_K", importance), gramian.encode(weight, "Q4_K")))
        with self.assertRaisesRegex(gramian.GramianError, "Q4_K"):
            gramian.encode(weight, "Q9")

    def test_gguf_comes_back(self):
        path = self.folder / "model.gguf"
        file = gramian.Gguf({"general.architecture": "llama", "a.count": 7, "a.scale": 0.5, "a.on": True, "a.names": ["x", "y"]})
        file.tensors["blk.0.attn_q.weight"] = gramian.GgufTensor.encode(rows(8, 256), "Q8_0")
        file.tensors["norm"] = gramian.GgufTensor.encode(rows(1, 64)[0], "F32")
        gramian.write_gguf(path, file)
        back = gramian.read_gguf(path)
        self.assertEqual(back.metadata, file.metadata)
        self.assertEqual(list(back.tensors), list(file.tensors))
        for name, tensor in file.tensors.items():
            self.assertEqual(back.tensors[name].shape, tensor.shape)
            self.assertTrue(torch.equal(back.tensors[name].decode(), tensor.decode()))
        path.write_bytes(path.read_bytes()[:100])
        with self.assertRaises(gramian.GramianError) as caught:
            gramian.read_gguf(path)
        self.assertEqual(caught.exception.kind, "corrupt_data")

    def test_imatrix_comes_back(self):
        for legacy in (False, True):
            path = self.folder / f"imatrix-{legacy}"
            given = gramian.Importance({"blk.0.attn_q.weight": (rows(1, 32).square(), torch.tensor([512.0]))}, ["text"], 1)
            gramian.write_imatrix(path, given, legacy=legacy)
            back = gramian.read_imatrix(path)
            expected = given.mean("blk.0.attn_q.weight")
            self.assertTrue(torch.allclose(back.mean("blk.0.attn_q.weight"), expected, rtol=1e-5), legacy)


if __name__ == "__main__":
    unittest.main()
