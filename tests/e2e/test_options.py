"""Every option of every verb changes something, and does not change what it should not."""
import functools
import json
import re
import shutil
import unittest

import gramian_e2e as e2e
from gramian_e2e import (TINYSTORIES, TinyModel, digests, random_rows, read_model, read_safetensors, tensor, write_rows,
                         write_safetensors)

DOWN = [f"model.layers.{i}.mlp.down_proj" for i in range(2)]  # two groups of 128 inputs: the only grouped layers


def weights(folder):
    """Digest of the weights."""
    return digests(folder)["model.safetensors"]


class Quantize(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tiny = TinyModel()
        cls.model = cls.tiny.write(cls.top / "model")
        cls.rows = write_rows(cls.top / "rows.safetensors", random_rows(12, 48))
        cls.base = cls.top / "base"
        result = e2e.gramian("quantize", cls.model, "-o", cls.base, "--calibration", cls.rows, "--json")
        if result.code != 0:
            raise AssertionError(str(result))
        cls.base_report = result.json()

    def job(self, *flags, name="out", method="qqq"):
        out = self.path(name)
        report = self.quantize(self.model, out, *flags, calibration=self.rows, method=method)
        return out, report

    def changes(self, *flags):
        """These flags change the weights; the result still reads back and stays near the source."""
        out, report = self.job(*flags)
        self.assertNotEqual(weights(out), weights(self.base), flags)
        self.assertEqual(report["fallbacks"], 0)
        scores = self.report("eval", out, "--rows", self.rows, "--reference", self.model)
        self.assertLess(scores["kl_mean"], 0.5, flags)
        return out, report

    def test_defaults(self):
        """The documented defaults are the ones in force."""
        out, report = self.job("--group-size", 128, "--mse", 2.4, "--damp-percent", 0.005, "--damp-step", 0.001, "--batch", 8,
                               "--lanes", "cpu:1", "--dtype", "auto", "--samples", 12)
        self.assertEqual(weights(out), weights(self.base))
        self.assertEqual((report["group_size"], report["mse"], report["damp_percent"]), (128, 2.4, 0.005))

    def test_method(self):
        out, report = self.job(method="rtn")
        self.assertNotEqual(weights(out), weights(self.base))
        self.assertEqual(({m["method"] for m in report["modules"]}, report["tokens"]), ({"rtn"}, 0))
        meta = json.loads((out / "config.json").read_text())["quantization_config"]["meta"]
        self.assertEqual(meta["solver"], "rtn")

    def test_group_size(self):
        out, report = self.changes("--group-size", -1)
        for name in DOWN:
            self.assertIn(name + ".s_group", read_model(self.base))
            self.assertNotIn(name + ".s_group", read_model(out))
        self.assertLess(report["bits_per_weight"], self.base_report["bits_per_weight"])

    def test_mse(self):
        for value in (0, 1):
            out, report = self.job("--mse", value, name=f"mse{value}")
            self.assertNotEqual(weights(out), weights(self.base))
            self.assertEqual(report["mse"], value)
        self.assertNotEqual(weights(self.path("mse0")), weights(self.path("mse1")))
        plain, _ = self.job("--mse", 0, name="plain", method="rtn")
        searched, _ = self.job(name="searched", method="rtn")
        self.assertNotEqual(weights(plain), weights(searched))

    def test_damp_percent(self):
        _, report = self.changes("--damp-percent", 0.1)
        for module, base in zip(report["modules"], self.base_report["modules"]):
            if ".0.self_attn.q_proj" in module["name"]:
                self.assertAlmostEqual(module["damp"], 20 * base["damp"], delta=1e-4 * module["damp"])
            self.assertGreater(module["damp"], base["damp"])

    def test_damp_step(self):
        """Sixteen equal rows of one token: a Hessian of rank one whose first damping is too small to factor."""
        rows = write_rows(self.path("one.safetensors"), [[5, 5]] * 4)
        flags = ("--damp-percent", 1e-12, "--dtype", "float32")
        reports = {}
        for step in (0, 0.01):
            report = self.quantize(self.model, self.path(f"step{step}"), *flags, "--damp-step", step, calibration=rows)
            reports[step] = {m["name"]: m for m in report["modules"]}
            self.assertEqual(report["fallbacks"], sum(m["fallback"] is not None for m in report["modules"]))
        without, stepped = reports[0], reports[0.01]
        name = "model.layers.0.self_attn.q_proj"
        self.assertGreater(stepped[name]["damp_attempts"], 1)
        self.assertGreater(stepped[name]["damp"], 0)
        self.assertIsNone(stepped[name]["fallback"])
        self.assertEqual(stepped[name]["method"], "qqq")
        self.assertNotEqual((without[name]["damp"], without[name]["damp_attempts"]),
                            (stepped[name]["damp"], stepped[name]["damp_attempts"]))
        self.assertNotEqual(weights(self.path("step0")), weights(self.path("step0.01")))

    def test_static_groups(self):
        out, _ = self.changes("--static-groups")
        base, static = read_model(self.base), read_model(out)
        self.assertNotEqual(base[DOWN[0] + ".s_group"], static[DOWN[0] + ".s_group"])
        config = json.loads((out / "config.json").read_text())["quantization_config"]
        self.assertIs(config["meta"]["static_groups"], True)

    def test_refine(self):
        """Two sweeps by default; without them the error against each Hessian is larger, and where the scales stay, too."""
        _, plain = self.changes("--refine", 0)
        for flags, name in ((("--refine", 5), "five"), (("--no-refine-scales",), "fixed")):
            self.job(*flags, name=name)
            self.assertNotEqual(weights(self.path(name)), weights(self.base), flags)
        for module, base in zip(plain["modules"], self.base_report["modules"]):
            self.assertIsNone(module["refined"])
            self.assertGreater(base["refined"]["codes"], 0)
        errors = [m["relative_error"] for report in (self.base_report, plain) for m in report["modules"] if ".0.self_attn.q" in m["name"]]
        self.assertLess(*errors)
        # The peer has no such pass.
        compat = [self.job("--compat", "gptqmodel", *flags, name="compat" + "".join(flags))[0] for flags in ((), ("--refine", "0"))]
        self.assertEqual(*map(weights, compat))

    def test_samples(self):
        out, report = self.changes("--samples", 6)
        self.assertEqual((report["rows_asked"], report["rows"], report["tokens"]), (6, 6, 6 * 48))
        first = write_rows(self.path("first.safetensors"), random_rows(12, 48)[:6])
        self.quantize(self.model, self.path("first"), calibration=first)
        self.assertEqual(weights(out), weights(self.path("first")))

    def test_batch(self):
        _, report = self.job("--batch", 5)
        self.assertEqual((report["batches"], report["linear_multiplications"]), (3, 3 * 14))
        self.assertEqual((self.base_report["batches"], self.base_report["linear_multiplications"]), (2, 2 * 14))

    def test_lanes(self):
        for lanes in (2, 5):  # more lanes than batches, too
            out, report = self.job("--lanes", f"cpu:{lanes}", "--batch", 4, name=f"lanes{lanes}")
            self.assertEqual((report["lanes"], report["batches"], report["linear_multiplications"]), (lanes, 3, 3 * 14))
            self.assertEqual({m["samples"] for m in report["modules"]}, {12 * 48})
            self.assertLess(self.report("eval", out, "--rows", self.rows, "--reference", self.model)["kl_mean"], 0.5)

    def test_threads(self):
        outputs = []
        for threads in (1, 2):
            out, report = self.job("--threads", threads, name=f"threads{threads}")
            outputs.append(read_model(out))
            self.assertEqual(report["linear_multiplications"], 2 * 14)
        first = {n: s for n, s in self.tiny.linears().items() if ".0.self_attn." in n and "o_proj" not in n}
        gap, codes = e2e.compare_quantized(*outputs, first)
        self.assertLessEqual(gap, 1e-5)
        self.assertLessEqual(codes, 0.001)

    def test_dtype(self):
        found = {}
        for name, written in (("float32", "Float"), ("bfloat16", "BFloat16"), ("float16", "Half")):
            out, report = self.job("--dtype", name, name=name)
            self.assertEqual(report["dtype"], written)
            found[written] = weights(out)
            self.assertLess(self.report("eval", out, "--rows", self.rows, "--reference", self.model)["kl_mean"], 0.5)
        self.assertEqual(len(set(found.values())), 3)
        self.assertEqual(found[self.base_report["dtype"]], weights(self.base))  # auto is one of them

    def test_accumulation(self):
        """How Hessians are summed shows in the losses; what cannot be is refused before work."""
        def losses(*flags, name="out"):
            _, report = self.job(*flags, "--force", name=name)
            return [module["loss"] for module in report["modules"]], report

        plain, report = losses("--dtype", "float32")
        self.assertEqual([report[key] for key in ("hessian_input_dtype", "staging_dtype", "chunk_size", "chunk_bytes", "hessian_products")],
                         ["auto", None, None, None, "float32"])
        rounded, report = losses("--dtype", "float32", "--staging-dtype", "bfloat16")
        self.assertNotEqual(rounded, plain)
        self.assertEqual(report["staging_dtype"], "bfloat16")
        self.assertEqual(report["stderr"].count("staging_dtype bfloat16 rounds"), 1, report["stderr"])
        for flags, keys in ((("--chunk-size", 7), ("chunk_size", 7)), (("--chunk-bytes", "4kB"), ("chunk_bytes", 4000))):
            chunked, report = losses("--dtype", "float32", *flags)
            self.assertNotEqual(chunked, plain)
            self.assertEqual(report[keys[0]], keys[1])
        float32, report = losses("--dtype", "bfloat16", "--hessian-input-dtype", "float32")
        self.assertEqual(report["hessian_products"], "float32")
        bfloat16, report = losses("--dtype", "bfloat16", "--hessian-input-dtype", "bfloat16")
        has = "avx512_bf16" in self.report("inspect", "--cpu")["cpu_level"]
        self.assertEqual(report["hessian_products"], "bfloat16" if has else "float32")
        self.assertEqual(bfloat16 != float32, has)
        self.assertEqual(report["stderr"].count("has no bf16 products"), 0 if has else 1, report["stderr"])
        compat = ("--compat", "gptqmodel", "--dtype", "float32")
        self.assertEqual(losses(*compat)[0], losses(*compat, "--staging-dtype", "bfloat16")[0])

    def test_accumulation_that_cannot_be(self):
        for flags, says in ((("--hessian-input-dtype", "bfloat16", "--dtype", "float32"), ("float32", "--staging-dtype")),
                            (("--hessian-input-dtype", "bfloat16", "--dtype", "bfloat16", "--compat", "gptqmodel"), ("GPT-QModel",)),
                            (("--hessian-input-dtype", "bfloat16", "--dtype", "bfloat16", "--staging-dtype", "float32"), ("contradicts",)),
                            (("--hessian-input-dtype", "float8"), ("float8", "auto, float32 or bfloat16")),
                            (("--staging-dtype", "float16"), ("float16",)),
                            (("--chunk-bytes", "many"), ("many",)), (("--chunk-size", "-1"), ("--chunk-size",))):
            self.refused_job(self.model, "--method", "qqq", *flags, calibration=self.rows, says=says)

    def test_compat(self):
        """The other tool's rules: channel scales from the weights, cleared dead columns, groups of zeros that are filled."""
        self.assertIsNone(self.base_report["compat"])
        tiny = TinyModel()
        tiny.change("model.layers.0.input_layernorm.weight", {17: 0.0})
        tiny.change(DOWN[0] + ".weight", {6 * 256 + 128 + i: 0.0 for i in range(128)})
        model, name = tiny.write(self.path("model")), "model.layers.0.self_attn.q_proj"
        for flags, expected in (((), None), (("--compat", "gptqmodel"), "gptqmodel")):
            out = self.path(f"out-{expected}")
            report = self.quantize(model, out, *flags, calibration=self.rows)
            self.assertEqual(report["compat"], expected)
            codes = e2e.qqq_codes(read_model(out)[name + ".B"], 128, 128, False)
            self.assertEqual(any(row[17] for row in codes), expected is None)
            self.assertEqual(any(e2e.qqq_weight(read_model(out), DOWN[0], 128, 256)[6][128:]), expected is not None)
            self.assertEqual({m["name"]: m["zero_groups"] for m in report["modules"]}[DOWN[0]], 1)
            self.report("eval", out, "--rows", self.rows)
        ours, theirs = (read_model(self.path(f"out-{x}"))[DOWN[0] + ".s_channel"].values() for x in (None, "gptqmodel"))
        self.assertNotEqual(ours, theirs)
        weight = e2e.matrix(tiny.tensors[DOWN[0] + ".weight"])
        plain = e2e.qqq_channel_scales(read_model(self.path("out-gptqmodel")), DOWN[0])
        for row, scale in zip(weight, plain):
            self.assertAlmostEqual(scale, max(map(abs, row)) / 127, delta=1e-6 * scale)

    def test_biases(self):
        """Qwen2's biases on q, k and v are stored as fp16 and read back."""
        tiny = TinyModel(family="qwen2")
        model = tiny.write(self.path("qwen2"))
        self.quantize(model, self.path("out"), calibration=self.rows)
        written = read_model(self.path("out"))
        biased = [name for name in tiny.linears() if name + ".bias" in tiny.tensors]
        self.assertEqual(len(biased), 6)
        expected = e2e.expected_tensors(tiny.linears(), 128, biased)
        self.assertEqual({n: (written[n].dtype, written[n].shape) for n in expected}, expected)
        for name in biased:
            source = tiny.tensors[name + ".bias"].values()
            self.assertEqual(written[name + ".bias"], tensor("F16", [len(source)], source))
        self.assertLess(self.report("eval", self.path("out"), "--rows", self.rows, "--reference", model)["kl_mean"], 0.5)

    def test_every_flag_is_named_in_the_help(self):
        common = ["--json", "--quiet", "--threads"]
        rows = ["--samples", "--sequence-length", "--seed", "--allow-fewer"]
        forward = ["--dtype", "--batch", "--treat-as-tied"]
        for verb, flags in {
                "quantize": ["--output", "--method", "--group-size", "--mse", "--damp-percent", "--damp-step", "--static-groups",
                             "--format", "--bits", "--activation-bits", "--sym", "--asym", "--order", "--desc-act", "--fallback",
                             "--fallback-smoother", "--refine", "--no-refine-scales", "--scale-multiples", "--fallback-threshold", "--no-fallback",
                             "--lm-head-bits", "--untie", "--recipe", "--target",
                             "--calibration", "--lanes", "--compat", "--skip-unfit", "--skip-scan", "--force", "--sequential", "--memory",
                             "--activations", "--scratch", "--min-expert-tokens", "--experts", "--dry-run", "--hessian-input-dtype",
                             "--staging-dtype", "--chunk-size", "--chunk-bytes", "--statistics", "--telemetry", "--metrics", "--watchdog", "--resume", "--held-out",
                             "--held-out-limit", "--type", "--encoder", "--importance-weighted", "--imatrix", "--no-shared-inputs", *forward, *rows],
                "eval": ["--text", "--rows", "--reference", "--reference-states", "--per-row", "--window", "--stride", "--protocol",
                         "--adapter", *forward, *rows],
                "compare": ["--text", "--rows", "--reference", "--reference-states", "--protocol", *forward, *rows], "logits": ["--input", "--output", "--adapter", *forward],
                "inspect": ["--cpu", "--plan", "--recipe"],
                "rotate": ["--output", "--only", "--seed", "--force"],
                "smooth": ["--output", "--calibration", "--alpha", "--force", "--batch", "--dtype", *rows],
                "probe": ["--text", "--tree", "--experts", "--dtype", "--treat-as-tied"], "verify": [], "demo": ["--model", "--output", "--page", "--prompt", *rows], "report": ["--output", "--telemetry", "--evaluation", "--reference", "--prompt", "--text"]}.items():
            result = self.ok(verb, "--help")
            for flag in [*flags, *common]:
                self.assertIn(flag, result.out, verb)
            known = set(re.findall(r"--[a-z][a-z-]+", result.out))
            self.assertEqual(known - {"--help"}, {*flags, *common}, verb)
        result = self.ok("--help")
        for verb in ("quantize", "eval", "logits", "inspect", "probe", "demo", "report", "verify", "bench"):
            self.assertIn(verb, result.out)
        self.assertIn("3 verify or probe found problems", result.out)
        self.assertRegex(self.ok("--version").out, r"^gramian \d+\.\d+\.\d+\n$")


class Calibration(e2e.GramianTestCase):
    """Kinds of rows, on a tiny model with the bundled tokenizer."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = TinyModel(layers=1, vocab=2048).write(cls.top / "model")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(TINYSTORIES / name, cls.model)
        cls.text = cls.top / "text.txt"
        cls.text.write_text((TINYSTORIES / "calibration.txt").read_text(encoding="utf-8")[:20000], encoding="utf-8")

    def rows_of(self, path, *flags, name="out", model=None):
        out = self.path(name)
        report = self.quantize(model or self.model, out, *flags, "--force", calibration=path)
        return {**report, "weights": weights(out)}

    def lines(self, rows, name="rows.jsonl"):
        self.path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return self.path(name)

    def test_text_windows(self):
        report = self.rows_of(self.text, "--sequence-length", 32)
        self.assertEqual((report["rows_asked"], report["rows"], report["tokens"]), (None, 128, 128 * 32))
        short = self.rows_of(self.text, "--sequence-length", 32, "--samples", 20)
        self.assertEqual((short["rows_asked"], short["rows"], short["tokens"]), (20, 20, 640))
        longer = self.rows_of(self.text, "--sequence-length", 64, "--samples", 20)
        self.assertEqual(longer["tokens"], 1280)
        self.assertEqual(len({report["weights"], short["weights"], longer["weights"]}), 3)

    def test_windows_are_taken_evenly(self):
        """Windows floor(i * total / n) of one stream: the same rows, given ready, give the same bytes."""
        result = self.rows_of(self.text, "--sequence-length", 32, "--samples", 2**20, "--allow-fewer", name="all")
        total = result["rows"]
        ids = self.token_ids(total)
        chosen = [ids[i * total // 7] for i in range(7)]
        ready = write_rows(self.path("ready.safetensors"), chosen)
        self.assertEqual(self.rows_of(ready)["weights"],
                         self.rows_of(self.text, "--sequence-length", 32, "--samples", 7)["weights"])

    def token_ids(self, total):
        """The text's windows of 32 tokens."""
        vocabulary = json.loads((self.model / "tokenizer.json").read_text(encoding="utf-8"))
        stream = bpe(self.text.read_text(encoding="utf-8"), vocabulary)
        self.assertEqual(len(stream) // 32, total)
        return [stream[i * 32:(i + 1) * 32] for i in range(total)]

    def test_seed(self):
        flags = ("--sequence-length", 32, "--samples", 16)
        evenly, first, again, other = (self.rows_of(self.text, *flags, *seed)
                                       for seed in ((), ("--seed", 1), ("--seed", 1), ("--seed", 2)))
        self.assertEqual(first["weights"], again["weights"])
        self.assertEqual(len({evenly["weights"], first["weights"], other["weights"]}), 3)
        self.assertIn("random", first["rows_policy"])
        self.assertNotIn("random", evenly["rows_policy"])
        rows = self.lines([{"input_ids": row} for row in random_rows(40, 16)])
        from_start, seeded = self.rows_of(rows, "--samples", 8), self.rows_of(rows, "--samples", 8, "--seed", 1)
        self.assertNotEqual(from_start["weights"], seeded["weights"])

    def test_options_that_do_nothing_are_said(self):
        ready = write_rows(self.path("ready.safetensors"), random_rows(4, 48))
        model = TinyModel().write(self.path("tiny"))
        flags = ("-q", "--calibration", ready)
        seeded = e2e.gramian("quantize", model, "-o", self.path("seeded"), "--seed", 1, *flags)
        self.assertIn("warning: --seed", seeded.err, seeded)
        rounded = e2e.gramian("quantize", model, "-o", self.path("rounded"), "--method", "rtn", *flags)
        self.assertIn("takes no calibration", rounded.err, rounded)
        self.assertEqual((seeded.code, rounded.code), (0, 0))

    def test_json_lines(self):
        texts = ["Once upon a time there was a cat.", "The dog ran to the park, and it was happy!", "A small bird sang."]
        ids = [bpe(text, json.loads((self.model / "tokenizer.json").read_text(encoding="utf-8"))) for text in texts]
        kinds = {
            "text": [{"text": text} for text in texts],
            "messages": [{"messages": [{"role": "user", "content": text}]} for text in texts],
            "input_ids": [{"input_ids": row} for row in ids],
            "mixed": [{"text": texts[0]}, {"input_ids": ids[1], "other": 1}, {"text": texts[2], "meta": {}}],
        }
        model = shutil.copytree(self.model, self.path("plain"))
        (model / "chat_template.jinja").unlink()
        found = {kind: self.rows_of(self.lines(rows), model=model) for kind, rows in kinds.items()}
        self.assertEqual({r["tokens"] for r in found.values()}, {sum(map(len, ids))})
        self.assertEqual({r["rows"] for r in found.values()}, {3})
        self.assertEqual(len({r["weights"] for r in found.values()}), 1)
        self.assertIn("no chat template", found["messages"]["stderr"])
        # Contents of one chat are joined by line ends.
        joined = self.rows_of(self.lines([{"messages": [{"content": texts[0]}, {"content": texts[1]}]}]), model=model)
        text = self.rows_of(self.lines([{"text": texts[0] + "\n" + texts[1]}]), model=model)
        self.assertEqual(joined["weights"], text["weights"])

    def test_chat_template_renders_messages(self):
        model = shutil.copytree(self.model, self.path("chat"))
        (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}<|end_of_text|>{% endfor %}")
        chats = self.lines([{"messages": [{"role": "user", "content": "Once upon a time"}]}] * 2)
        encode = lambda text: bpe(text, json.loads((model / "tokenizer.json").read_text(encoding="utf-8")))
        row = encode("user: Once upon a time")
        found = self.rows_of(chats, model=model)
        self.assertNotIn("joined", found["stderr"])
        self.assertIn("rendered by the chat template", found["stderr"])
        ids = self.lines([{"input_ids": row + [1]}] * 2, name="ids.jsonl")
        self.assertEqual(found["weights"], self.rows_of(ids, model=model)["weights"])
        (model / "chat_template.jinja").write_text("{{ raise_exception('only system messages') }}")
        self.refused_job(model, calibration=chats, says=("chat_template.jinja", "line 1", "only system messages"))

    def test_sequence_length_splits_json_rows_and_leaves_ready_rows(self):
        rows = random_rows(6, 40, vocab=2048)
        ready = write_rows(self.path("ready.safetensors"), rows)
        whole, same = self.rows_of(ready), self.rows_of(ready, "--sequence-length", 16)
        self.assertEqual((same["rows"], same["weights"]), (6, whole["weights"]))
        lines = self.lines([{"input_ids": row} for row in rows])
        self.assertEqual(self.rows_of(lines)["weights"], whole["weights"])
        split = self.rows_of(lines, "--sequence-length", 16)
        self.assertEqual((split["rows"], split["rows_split"], split["tokens"]), (18, 6, 240))
        pieces = [row[at:at + 16] for row in rows for at in (0, 16, 32)]
        self.assertEqual(split["weights"], self.rows_of(self.lines([{"input_ids": row} for row in pieces]))["weights"])

    def test_allow_fewer(self):
        rows = write_rows(self.path("rows.safetensors"), random_rows(4, 16))
        self.refused_job(self.model, "--method", "qqq", "--samples", 9, calibration=rows, says=("--allow-fewer",))
        report = self.rows_of(rows, "--samples", 9, "--allow-fewer")
        self.assertEqual((report["rows_asked"], report["rows"]), (9, 4))
        self.assertIn("warning", report["stderr"])
        for flags, code in ((("--samples", 9), 2), (("--samples", 9, "--allow-fewer"), 0)):
            self.assertEqual(e2e.gramian("eval", self.model, "--rows", rows, *flags).code, code)


def bpe(text, tokenizer):
    """Byte-level BPE of the bundled kind, the plain way."""
    vocabulary = tokenizer["model"]["vocab"]
    merges = tokenizer["model"]["merges"]
    ranks = {tuple(m if isinstance(m, list) else m.split(" ")): i for i, m in enumerate(merges)}
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = dict(zip(printable, map(chr, printable)))
    letters.update({b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in printable)})

    @functools.cache
    def word(piece):
        parts = [letters[b] for b in piece.encode()]
        while len(parts) > 1:
            rank, at = min((ranks.get(pair, len(ranks)), i) for i, pair in enumerate(zip(parts, parts[1:])))
            if rank == len(ranks):
                break
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        return [vocabulary[part] for part in parts]
    # The file's split pattern, with Python's classes: enough for texts without underscores.
    pieces = re.findall(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\w]?[^\W\d_]+|\d{1,3}| ?[^\s\w]+[\r\n]*"
                        r"|\s*[\r\n]+|\s+(?!\S)|\s+", text)
    return [id for piece in pieces for id in word(piece)]


class Eval(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = TinyModel().write(cls.top / "model")
        cls.rows = write_rows(cls.top / "rows.safetensors", random_rows(10, 24))

    def scores(self, *flags):
        return self.report("eval", self.model, "--rows", self.rows, *flags)

    def test_options(self):
        base = self.scores()
        self.assertEqual((base["rows"], base["tokens"], base["kl_mean"]), (10, 230, None))
        few = self.scores("--samples", 5)
        self.assertEqual((few["rows"], few["tokens"]), (5, 115))
        self.assertNotEqual(few["perplexity"], base["perplexity"])
        for flags in (("--batch", 1), ("--batch", 3), ("--threads", 1)):
            self.assertAlmostEqual(self.scores(*flags)["perplexity"] / base["perplexity"], 1, 2)
        found = {name: self.scores("--dtype", name) for name in ("float32", "bfloat16", "float16")}
        self.assertEqual([s["dtype"] for s in found.values()], ["Float", "BFloat16", "Half"])
        self.assertEqual(len({s["perplexity"] for s in found.values()}), 3)
        other = TinyModel(seed=3).write(self.path("other"))
        self.assertGreater(self.scores("--reference", other)["kl_mean"], 0.1)
        one = self.scores("--samples", 1, "--reference", other)
        self.assertEqual(one["kl_ci95"], [None, None])  # no interval from a single row

    def test_text_options(self):
        model = TinyModel(layers=1, vocab=2048).write(self.path("model"))
        shutil.copy(TINYSTORIES / "tokenizer.json", model)
        flags = ("--text", TINYSTORIES / "heldout.txt", "--samples", 8)
        base = self.report("eval", model, *flags, "--sequence-length", 32)
        self.assertEqual((base["rows"], base["tokens"]), (8, 8 * 31))
        self.assertEqual(self.report("eval", model, *flags, "--sequence-length", 16)["tokens"], 8 * 15)
        seeded = [self.report("eval", model, *flags, "--sequence-length", 32, "--seed", seed)["perplexity"] for seed in (4, 4, 5)]
        self.assertEqual(seeded[0], seeded[1])
        self.assertEqual(len({base["perplexity"], *seeded}), 3)

    def test_logits_options(self):
        found = {}
        types = [("--dtype", name) for name in ("float32", "float16", "bfloat16")]
        for flags in ((), *types, ("--batch", 2), ("--threads", 1)):
            out = self.path("logits.safetensors")
            document = self.report("logits", self.model, "--input", self.rows, "--output", out, *flags)
            self.assertEqual((document["rows"], document["length"], document["vocab"]), (10, 24, 300))
            found[flags] = (document["linear_multiplications"], read_safetensors(out)["logits"].data)
        self.assertEqual([found[key][0] for key in ((), ("--batch", 2))], [2 * 14, 5 * 14])
        self.assertEqual(len({found[key][1] for key in types}), 3)
        # auto: bf16 where the CPU multiplies it.
        self.assertIn(found[()][1], (found[types[0]][1], found[types[2]][1]))


if __name__ == "__main__":
    unittest.main()
