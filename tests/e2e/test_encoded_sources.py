"""Sources as published: FP8 with block scales and MXFP4 experts quantize to what their decoded values quantize to."""
import json
import random
import struct
import unittest

import gramian_e2e as e2e
from gramian_e2e import Tensor, TinyMixture, TinyModel, random_rows, read_model, tensor, write_rows
from tiny_architectures import EXPERT, EXPERTS, HIDDEN, TinyArchitecture

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def e4m3(code):
    exponent, mantissa = code >> 3 & 15, code & 7
    value = mantissa / 512 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -value if code & 128 else value


def put_fp8(stored, decoded, name, source):
    """Replaces a matrix by random codes with block scales, and by the F32 values that they mean."""
    out, width = stored[name].shape
    codes = [source.choice((0, 128)) | source.randrange(0x78) for _ in range(out * width)]
    across = (width + 127) // 128
    scales = [2.0 ** -12 * (1 + i / 7) for i in range((out + 127) // 128 * across)]
    scales = list(struct.unpack(f"<{len(scales)}f", struct.pack(f"<{len(scales)}f", *scales)))
    stored[name] = Tensor("F8_E4M3", [out, width], bytes(codes))
    stored[name + "_scale_inv"] = tensor("F32", [(out + 127) // 128, across], scales)
    decoded[name] = tensor("F32", [out, width], [e4m3(code) * scales[i // width // 128 * across + i % width // 128]
                                                 for i, code in enumerate(codes)])


def put_mxfp4(stored, decoded, name, rows, cols, source):
    """The same of a stack [EXPERTS, cols, rows], stored as blocks of its transposed matrices."""
    count = EXPERTS * rows * cols
    nibbles = [source.randrange(16) for _ in range(count)]
    scales = [source.randrange(120, 124) for _ in range(count // 32)]
    stored.pop(name)
    stored[name + "_blocks"] = Tensor("U8", [EXPERTS, rows, cols // 32, 16],
                                      bytes(nibbles[i] | nibbles[i + 1] << 4 for i in range(0, count, 2)))
    stored[name + "_scales"] = Tensor("U8", [EXPERTS, rows, cols // 32], bytes(scales))
    values = [(-1 if code & 8 else 1) * E2M1[code & 7] * 2.0 ** (scales[i // 32] - 127) for i, code in enumerate(nibbles)]
    decoded[name] = tensor("BF16", [EXPERTS, cols, rows], [
        values[(e * rows + row) * cols + col] for e in range(EXPERTS) for col in range(cols) for row in range(rows)])


class EncodedSources(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rows = write_rows(cls.top / "rows.safetensors", random_rows(6, 40))

    def pair(self, tiny, encode, quantization):
        """(folder of the encoded model, folder of its decoded twin)"""
        plain = dict(tiny.tensors)
        encode(tiny.tensors, plain, random.Random(11))
        config = dict(tiny.config)
        tiny.config["quantization_config"] = quantization
        encoded = tiny.write(self.path("encoded"))
        tiny.tensors, tiny.config = plain, config
        return encoded, tiny.write(self.path("decoded"))

    def same_output(self, encoded, decoded, *flags):
        reports = [self.quantize(model, self.path(f"out-{model.name}"), *flags, calibration=self.rows)
                   for model in (encoded, decoded)]
        outputs = [read_model(self.path(f"out-{model.name}")) for model in (encoded, decoded)]
        self.assertEqual(outputs[0].keys(), outputs[1].keys())
        self.assertEqual(reports[0]["bits_per_weight"], reports[1]["bits_per_weight"])
        config = json.loads((self.path("out-encoded") / "config.json").read_text())
        self.assertEqual(config["quantization_config"]["quant_method"], "qqq")
        self.assertEqual(self.report("verify", self.path("out-encoded"))["problems"], [])
        self.report("eval", encoded, "--rows", self.rows, "--reference", decoded)
        return outputs

    def test_fp8(self):
        for tiny in (TinyModel(family="qwen3", intermediate=320), TinyMixture()):
            with self.subTest(tiny.config["model_type"]):
                self.folder = self.path(tiny.config["model_type"])
                self.folder.mkdir()
                linears = tiny.linears()

                def encode(stored, decoded, source, linears=linears):
                    for name in linears:
                        put_fp8(stored, decoded, name + ".weight", source)
                # The down projections of 320 columns end in a partial block and fit whole rows only.
                flags = ("--group-size", "-1") if tiny.config["model_type"] == "qwen3" else ()
                one, other = self.same_output(*self.pair(tiny, encode, FP8), *flags)
                self.assertEqual(one, other)
                self.folder = self.folder.parent

    def test_what_is_not_quantized_is_decoded(self):
        tiny = TinyModel(family="qwen3")
        tiny.tensors["mtp.layers.0.mlp.up_proj.weight"] = tensor("BF16", [130, 128], [0.25] * 130 * 128)

        def encode(stored, decoded, source):
            for name in [*(name + ".weight" for name in tiny.linears()), "mtp.layers.0.mlp.up_proj.weight"]:
                put_fp8(stored, decoded, name, source)
        one, other = self.same_output(*self.pair(tiny, encode, FP8))
        kept = one.pop("mtp.layers.0.mlp.up_proj.weight")
        values = other.pop("mtp.layers.0.mlp.up_proj.weight").values()
        self.assertEqual((kept.dtype, kept.shape), ("BF16", [130, 128]))
        self.assertLess(max(abs(a - b) / max(abs(b), 1e-30) for a, b in zip(kept.values(), values)), 2 ** -8)
        self.assertEqual(one, other)

    def test_mxfp4(self):
        def encode(stored, decoded, source):
            for i in range(2):
                prefix = f"model.layers.{i}.mlp.experts."
                put_mxfp4(stored, decoded, prefix + "gate_up_proj", 2 * EXPERT, HIDDEN, source)
                put_mxfp4(stored, decoded, prefix + "down_proj", HIDDEN, EXPERT, source)
        one, other = self.same_output(*self.pair(TinyArchitecture("gpt_oss"), encode, {"quant_method": "mxfp4"}))
        self.assertEqual(one, other)

    def refused_fp8(self, change, says, code=2):
        tiny, name = TinyModel(), "model.layers.0.mlp.up_proj.weight"
        put_fp8(tiny.tensors, {}, name, random.Random(3))
        tiny.config["quantization_config"] = dict(FP8)
        change(tiny, name)
        model = tiny.write(self.path(says))
        self.refused_job(model, says=(says,), code=code)
        self.refused("eval", model, "--rows", self.rows, says=(says,), code=code)

    def test_refused(self):
        self.refused_fp8(lambda tiny, name: tiny.tensors.pop(name + "_scale_inv"), "up_proj.weight_scale_inv")
        self.refused_fp8(lambda tiny, name: tiny.tensors.update({name + "_scale_inv": tensor("F32", [1, 1], [1.0])}),
                         "expected F32 [2, 1]")
        self.refused_fp8(lambda tiny, name: tiny.config["quantization_config"].pop("weight_block_size"), "weight_block_size")

    def test_codes_that_are_not_numbers(self):
        tiny, name = TinyModel(), "model.layers.0.mlp.up_proj.weight"
        put_fp8(tiny.tensors, {}, name, random.Random(3))
        item = tiny.tensors[name]
        tiny.tensors[name] = Tensor(item.dtype, item.shape, item.data[:5] + b"\x7f" + item.data[6:])
        tiny.config["quantization_config"] = dict(FP8)
        self.refused_job(tiny.write(self.path("nan")), says=(name, "[0, 5]"))


if __name__ == "__main__":
    unittest.main()
