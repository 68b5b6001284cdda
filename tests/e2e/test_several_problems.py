"""What is wrong with a job is said in one message, before work starts; a single problem is said as it is."""
import json
import math
import shutil
import unittest

import gramian_e2e as e2e
from gramian_e2e import TinyModel, random_rows, tensor, write_rows

Q0, UP1 = "model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.up_proj.weight"


class SeveralProblems(e2e.GramianTestCase):
    def refuse(self, model, *arguments, output=None, says=()):
        """`says`: per problem, in order, the texts of its item in the list."""
        output = output or self.path("out")
        result = self.refused("quantize", model, "-o", output, *arguments, output=output)
        head, *items = result.err[result.err.index("error:"):].rstrip("\n").split("\n- ")
        self.assertEqual(head, f"error: {len(says)} problems:", result)
        self.assertEqual(len(items), len(says), result)
        for item, texts in zip(items, says):
            for text in texts:
                self.assertIn(str(text), item, result)
        return items

    def occupied(self):
        out = self.path("out")
        out.mkdir()
        (out / "own.txt").write_text("mine")
        return out

    def test_everything_at_once(self):
        """Options, output, head, tensors, shapes, calibration and values."""
        out, tiny = self.occupied(), TinyModel(tied=False, intermediate=320)
        for name in ("lm_head.weight", UP1):
            del tiny.tensors[name]
        tiny.tensors["model.norm.weight"] = tensor("BF16", [64], [1.0] * 64)
        tiny.change(Q0, {130: math.nan})
        model = tiny.write(self.path("model"))
        rows = write_rows(self.path("rows.safetensors"), [[1, 2, 999]])
        output, tensors, shapes, calibration, values = (
            (out, "not empty", "--force"),
            (model, "3 tensors do not fit config.json", "lm_head.weight", "--treat-as-tied", "model.norm.weight", "[64]", "[128]",
             UP1),
            ("2 linear layer(s)", "model.layers.0.mlp.down_proj [128 x 320]", "--skip-unfit", "--group-size"),
            (rows, "position 2", "999", "300"), (Q0, "1 value(s)", "[1, 2]"))
        items = self.refuse(model, "--method", "qqq", "--dtype", "int8", "--calibration", rows,
                            says=(("--dtype", "int8"), output, tensors, shapes, calibration, values))
        # A list within the list is indented under its problem.
        self.assertEqual([line[:4] for line in items[2].splitlines()[1:]], ["    "] * 3)
        self.refuse(model, "--method", "magic", "--calibration", rows,
                    says=(("--method", "magic", "qqq, gptq, rtn"), output, tensors, shapes, calibration, values))
        # What is settled is not said again.
        self.refuse(model, "--method", "rtn", "--skip-unfit", "--skip-scan", says=(output, tensors))
        self.refuse(model, "--method", "qqq", "--skip-unfit", "--treat-as-tied", output=self.path("other"),
                    says=((model, "2 tensors", "model.norm.weight", UP1), ("--calibration", "needs calibration"), values))

    def test_files_of_the_model(self):
        """A broken configuration, a missing shard and a damaged one; then what the configuration says cannot be checked."""
        out, model = self.occupied(), TinyModel().write(self.path("model"), shards=3)
        names = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
        (model / "config.json").write_text("{")
        (model / names[0]).unlink()
        (model / names[1]).write_bytes(b"")
        none = self.path("none.txt")
        for flags, says in ((("--method", "rtn"), ()), (("--calibration", none), ((none, "No such file"),))):
            self.refuse(model, *flags, says=((out, "not empty"), ("config.json", "JSON"), ("1 of 3 files", names[0]),
                                             (names[1], "empty file"), *says))
        self.refused("inspect", model, says=("3 problems", "config.json", *names[:2]))

    def test_no_model(self):
        out, none = self.occupied(), self.path("none")
        self.refuse(none, "--calibration", self.path("none.txt"),
                    says=((out, "not empty"), (none, "no such folder"), ("none.txt", "No such file")))

    def test_quantized_already(self):
        """Its tensors are not those of a plain model, which says nothing; its calibration is still looked at."""
        model, out = TinyModel().write(self.path("model")), self.path("quantized")
        self.quantize(model, out, method="rtn")
        rows = self.path("rows.jsonl")
        rows.write_text("[]\n")
        self.refuse(out, "--calibration", rows, says=((out, "quantized already"), (rows, "line 1")))

    def test_a_single_problem_is_no_list(self):
        tiny = TinyModel(tied=False)
        model = tiny.write(self.path("model"))
        rows = write_rows(self.path("rows.safetensors"), random_rows(2, 16))
        for name, says in ((UP1, rf'no tensor "{UP1}" among'), ("lm_head.weight", r"tensor 'lm_head.weight' is in no file")):
            damaged = TinyModel(tied=False)
            del damaged.tensors[name]
            result = self.refused_job(damaged.write(self.path(name)), calibration=rows)
            self.assertRegex(result.err, rf"(?m)^error: {self.path(name)}: {says}.*; .*$")
        shutil.rmtree(model)
        tiny.write(model, shards=2)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "hidden_size": "x"}))
        result = self.refused_job(model, calibration=rows)
        self.assertRegex(result.err, rf"(?m)^error: {model}/config.json: 'hidden_size' must be an integer")

    def test_weights_are_searched_when_the_rest_is_right(self):
        """A large checkpoint is not read to the end to say that its output folder is taken."""
        out, tiny = self.occupied(), TinyModel()
        tiny.change(Q0, {0: math.inf})
        model = tiny.write(self.path("model"))
        name, bytes_ = "large.weight", 5 << 30
        header = json.dumps({name: {"dtype": "U8", "shape": [bytes_], "data_offsets": [0, bytes_]}}).encode()
        index = {"weight_map": {**dict.fromkeys(tiny.tensors, "model.safetensors"), name: "large.safetensors"}}
        (model / "model.safetensors.index.json").write_text(json.dumps(index))
        with open(model / "large.safetensors", "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + bytes_)
        result = self.refused("quantize", model, "-o", out, "--method", "rtn", output=out, says=(out, "not empty"))
        self.assertNotIn("problems", result.err)
        self.assertIn("searched for NaN and infinity when nothing else is wrong", result.err)
        self.refused_job(model, says=(Q0, "[0, 0]"))


if __name__ == "__main__":
    unittest.main()
