"""`gramian verify`: what is sound passes, every kind of damage is listed, and random damage never crashes it."""
import json
import math
import random
import shutil
import struct
import subprocess
import time
import unittest

import gramian_e2e as e2e
from gramian_e2e import ROOT, TINYSTORIES, TinyModel, random_rows, read_model, tensor, write_rows, write_safetensors

GOLDEN = ROOT / "tests" / "golden"
INDEX = "model.safetensors.index.json"
Q, UP, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj", "model.layers.0.mlp.down_proj"


class VerifyTestCase(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = TinyModel(family="qwen2", hidden=256).write(cls.top / "model")
        shutil.copy(TINYSTORIES / "tokenizer.json", cls.model)
        result = e2e.gramian("quantize", cls.model, "-o", cls.top / "good", "--method", "rtn")
        if result.code != 0:
            raise RuntimeError(str(result))

    def setUp(self):
        super().setUp()
        self.out = self.path("out")
        shutil.copytree(self.top / "good", self.out)
        self.tensors = read_model(self.out)

    def rewrite(self):
        write_safetensors(self.out / "model.safetensors", self.tensors)

    def shard(self):
        """Two files and their index, which is returned."""
        names, weight_map = sorted(self.tensors), {}
        for shard in range(2):
            file = f"model-{shard + 1:05d}-of-00002.safetensors"
            part = {name: self.tensors[name] for name in names[shard::2]}
            write_safetensors(self.out / file, part)
            weight_map.update(dict.fromkeys(part, file))
        (self.out / "model.safetensors").unlink()
        size = sum(len(item.data) for item in self.tensors.values())
        return {"metadata": {"total_size": size}, "weight_map": weight_map}

    def spoil(self, name, value, place=5):
        item = self.tensors[name]
        values = item.values()
        values[place] = value
        self.tensors[name] = tensor(item.dtype, item.shape, values)

    def sound(self, folder):
        report = self.report("verify", folder)
        self.assertIs(report["verified"], True)
        self.assertEqual(report["problems"], [])
        self.assertRegex(self.ok("verify", folder).out, r"^[^\n]*: sound, [^\n]*\n$")
        return report

    def problems(self, *says):
        """Exit code 3, the same lines on stderr and in the document, one for each text of `says`."""
        result = e2e.gramian("verify", self.out, "--json")
        self.assertEqual(result.code, 3, result)
        document = result.json()
        self.assertIs(document["verified"], False)
        said = result.err[result.err.index("error:"):].splitlines()
        self.assertEqual([line.strip() for line in said[1:]], document["problems"], result)
        self.assertEqual(len(document["problems"]), len(says), result)
        for text in says:
            self.assertTrue(any(text in line for line in document["problems"]), f"{text}\n{result}")
        return result


class Sound(VerifyTestCase):
    def test_own_outputs(self):
        report = self.sound(self.out)
        self.assertEqual((report["group_size"], report["modules"], report["int8_saturated"]), (128, 14, 0))
        self.assertEqual(report["tensors"], len(self.tensors))
        for name, arguments in (("row", ("--group-size", -1)), ("peer", ("--compat", "gptqmodel"))):
            out = self.path(name)
            self.quantize(self.model, out, *arguments, method="rtn")
            self.sound(out)
        index = self.shard()
        (self.out / INDEX).write_text(json.dumps(index))
        self.sound(self.out)

    def test_layers_left_out(self):
        model = TinyModel(head_dim=48, heads=4, kv_heads=1, intermediate=192).write(self.path("unfit"))
        report = self.quantize(model, self.path("unfit-out"), "--skip-unfit", "--group-size", -1, method="rtn")
        self.assertTrue(report["skipped"])
        found = self.sound(self.path("unfit-out"))
        self.assertEqual(found["modules"], len(report["modules"]))

    def test_of_others(self):
        report = self.sound(GOLDEN / "qqq_checkpoint" / "qqq_g128")
        self.assertEqual((report["group_size"], report["modules"], report["int8_saturated"]), (128, 14, 1422))
        self.assertEqual(self.sound(GOLDEN / "qqq_checkpoint" / "qqq_row")["group_size"], -1)

    def test_plain_models(self):
        for folder in (TINYSTORIES, self.model, *sorted(p.parent for p in (GOLDEN / "arch").glob("*/config.json"))):
            report = self.sound(folder)
            self.assertEqual((report["group_size"], report["modules"]), (None, 0))

    def test_a_job_verifies_its_output(self):
        rows = write_rows(self.path("rows.safetensors"), random_rows(4, 32))
        for method in ("qqq", "rtn"):
            report = self.quantize(self.model, self.path(method), method=method, calibration=rows)
            self.assertIs(report["verified"], True)
            self.assertGreater(report["stages"]["verify"], 0)
            self.assertLess(report["stages"]["verify"], report["seconds"])
            for module in report["modules"]:
                if method == "rtn":
                    self.assertIsNone(module["relative_error"])
                else:
                    self.assertTrue(0 < module["relative_error"] < 0.5, module)

    def test_relative_error_follows_the_quality(self):
        """The scale search lowers it; the first layer's inputs are the same in both jobs."""
        rows = write_rows(self.path("rows.safetensors"), random_rows(16, 64))
        errors = {}
        for mse in (0, 2.4):
            report = self.quantize(self.model, self.path(f"mse{mse}"), "--mse", mse, "--group-size", -1, calibration=rows)
            errors[mse] = {m["name"]: m["relative_error"] for m in report["modules"]}
        self.assertLess(errors[2.4][Q], errors[0][Q])

    def test_a_source_that_changes_meanwhile(self):
        """What was copied is not what the source holds now: the job fails, and nothing is left."""
        model, out = self.path("changing"), self.path("changed")
        shutil.copytree(TINYSTORIES, model)
        process = subprocess.Popen([e2e.BINARY, "quantize", model, "-o", out, "--calibration", model / "calibration.txt",
                                    "--samples", "50", "-q"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        # Side files are copied behind the tensors.
        while not list(self.folder.glob("changed.journal/output/tokenizer_config.json")) and process.poll() is None:
            time.sleep(0.005)
        self.assertIsNone(process.poll())
        with open(model / "model.safetensors", "r+b") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            place = 8 + length + json.loads(file.read(length))["model.norm.weight"]["data_offsets"][0]
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1]))
        _, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1, error)
        self.assertIn(b'does not verify, 1 problem(s):\n  "model.norm.weight": is neither copied byte for byte', error)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["changing", "out"])

    def test_memory_holds_one_tensor_at_a_time(self):
        base = self.sound(self.model)["peak_rss_bytes"]
        job = self.quantize(self.model, self.path("small"), method="rtn")["peak_rss_bytes"]
        tiny = TinyModel(family="qwen2", hidden=256)
        for i in range(4):
            tiny.tensors[f"unknown.{i}"] = e2e.Tensor("F16", [48 << 10, 512], bytes(48 << 20))
        model = tiny.write(self.path("large"))
        self.assertLess(self.sound(model)["peak_rss_bytes"], base + (72 << 20))
        report = self.quantize(model, self.path("large-out"), method="rtn")
        self.assertLess(report["peak_rss_bytes"], job + (72 << 20))
        self.assertLess(self.sound(self.path("large-out"))["peak_rss_bytes"], base + (72 << 20))


class Damage(VerifyTestCase):
    """One kind of damage at a time, unless it says otherwise."""

    def test_scales(self):
        for name, value in ((UP + ".s_channel", math.nan), (UP + ".s_channel", math.inf), (UP + ".s_channel", -1.0),
                            (DOWN + ".s_group", math.nan), (DOWN + ".s_group", math.inf), (DOWN + ".s_group", -2.0),
                            (Q + ".bias", math.nan)):
            with self.subTest(name=name, value=value):
                good = self.tensors[name]
                self.spoil(name, value)
                self.rewrite()
                self.problems(name)
                self.tensors[name] = good

    def test_tensors_missing_or_of_another_shape(self):
        del self.tensors[UP + ".s_channel"]
        del self.tensors[Q + ".bias"]
        self.tensors[DOWN + ".B"] = tensor("I32", [8, 512], [0] * 8 * 512)
        self.tensors["model.norm.weight"] = tensor("F32", [255], [1.0] * 255)
        self.rewrite()
        self.problems(UP + ".s_channel: expected", Q + ".bias: expected", DOWN + ".B: expected",
                      'tensor "model.norm.weight" has shape [255]')

    def test_values_that_are_copied(self):
        self.spoil("model.norm.weight", math.nan)
        self.spoil("model.embed_tokens.weight", math.inf, 300)
        self.rewrite()
        self.problems('"model.norm.weight": 1 value(s)', '"model.embed_tokens.weight": 1 value(s)')

    def test_stored_twice_or_excluded(self):
        source = read_model(self.model)
        self.tensors[UP + ".weight"] = source[UP + ".weight"]
        self.rewrite()
        config = json.loads((self.out / "config.json").read_text())
        config["quantization_config"]["modules_to_not_convert"] = ["down_proj"]
        (self.out / "config.json").write_text(json.dumps(config))
        self.problems(UP + ": is stored twice", DOWN + ": is quantized, and excluded",
                      "model.layers.1.mlp.down_proj: is quantized, and excluded")

    def test_not_quantized_and_not_excluded(self):
        for part in (".B", ".s_channel", ".s_group"):
            del self.tensors[UP + part]
        self.tensors[UP + ".weight"] = read_model(self.model)[UP + ".weight"]
        self.rewrite()
        self.problems(UP + ": is not quantized")

    def test_group_size(self):
        path = self.out / "config.json"
        path.write_text(path.read_text().replace('"group_size": 128', '"group_size": -1'))
        result = self.problems('"group_size" is 128, config.json says -1', *[".s_group: group scales are stored"] * 12)
        self.assertIn(UP, result.err)

    def test_configurations(self):
        (self.out / "quantize_config.json").write_text('{"bits": 4, "sym": false}')
        self.problems('"sym" is false')
        (self.out / "quantize_config.json").unlink()
        self.sound(self.out)
        config = json.loads((self.out / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "qqq", "wbits": 4, "group_size": 128, "unknown": {"x": [1]}}
        (self.out / "config.json").write_text(json.dumps(config))
        self.sound(self.out)
        config["num_hidden_layers"] = 3
        (self.out / "config.json").write_text(json.dumps(config))
        self.problems("model.layers.2.")
        del config["quantization_config"]
        config["num_hidden_layers"] = 2
        (self.out / "config.json").write_text(json.dumps(config))
        self.problems("no quantization_config")

    def test_index(self):
        index = self.shard()
        names = sorted(index["weight_map"])
        index["metadata"]["total_size"] += 1
        del index["weight_map"][names[0]], index["weight_map"][names[3]]
        (self.out / INDEX).write_text(json.dumps(index))
        self.problems("total_size", f'does not name tensor "{names[0]}"', f'does not name tensor "{names[3]}"')

    def test_tokenizer(self):
        content = (self.out / "tokenizer.json").read_bytes()
        (self.out / "tokenizer.json").write_bytes(content[:-100])
        self.problems("tokenizer.json: not valid JSON")

    def test_what_cannot_be_opened_is_bad_input(self):
        for file, change in (("model.safetensors", lambda b: b[:-4]), ("config.json", lambda b: b[:-9]),
                             ("config.json", lambda b: b.replace(b"qwen2", b"mamba2"))):
            good = (self.out / file).read_bytes()
            (self.out / file).write_bytes(change(good))
            self.refused("verify", self.out, "--json")
            (self.out / file).write_bytes(good)
        self.refused("verify", self.path("none"), says=("no such folder",))
        (self.out / "config.json").unlink()
        self.refused("verify", self.out, says=("no config.json",))

    def test_a_kind_that_is_not_read(self):
        config = json.loads((self.model / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "awq", "bits": 4}
        shutil.copytree(self.model, self.path("awq"))
        (self.path("awq") / "config.json").write_text(json.dumps(config))
        self.refused("verify", self.path("awq"), says=("method 'awq'",))

    def test_random_damage(self):
        """Any byte of any file: exit code 0, 2 or 3, with one error line, and never a crash."""
        files = ("model.safetensors", "config.json", "quantize_config.json", "tokenizer.json")
        codes = set()
        for seed in range(48):
            source = random.Random(seed)
            file = self.out / files[seed % len(files)]
            good = file.read_bytes()
            bad = bytearray(good)
            head = 4000 if file.suffix == ".safetensors" and seed % 8 else len(bad)
            for _ in range(source.randint(1, 4)):
                bad[source.randrange(head)] = source.choice((source.randrange(256), ord("0") + source.randrange(10)))
            file.write_bytes(bad)
            result = e2e.gramian("verify", self.out, "-q")
            codes.add(result.code)
            self.assertIn(result.code, (0, 2, 3), f"seed {seed}\n{result}")
            self.assertEqual(result.err.count("error:"), int(result.code != 0), f"seed {seed}\n{result}")
            file.write_bytes(good)
        self.assertEqual(codes, {0, 2, 3})


if __name__ == "__main__":
    unittest.main()
