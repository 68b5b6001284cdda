"""`gramian bench` measures the kernels in use beside LibTorch. Times are never compared: other work may keep the machine busy."""
import unittest

import gramian_e2e as e2e

KEYS = {"name", "dtype", "K", "T", "threads", "cpu_level", "ratio_vs_torch", "gflops", "peak_share", "error", "torch_error", "scaling"}


RUN_KEYS = {"model", "prompt_tokens", "decoded_tokens", "prefill_tokens_per_second", "decode_tokens_per_second", "weight_bytes",
            "weight_gbytes_per_second", "read_bandwidth_gbytes_per_second", "threads", "cpu_level", "kv_cache_bytes", "resident_bytes", "load_seconds"}


class Bench(e2e.GramianTestCase):
    def bench(self, *arguments, level=None):
        environment = {"GRAMIAN_CPU_LEVEL": level} if level else None
        result = self.ok("bench", *arguments, "--quick", "--json", environment=environment)
        figures = result.json()
        self.assertIsInstance(figures, list)
        for figure in figures:
            self.assertEqual(set(figure), KEYS)
            self.assertGreater(figure["ratio_vs_torch"], 0)
            self.assertGreater(figure["gflops"], 0)
            self.assertTrue(0 < figure["error"] < 1e-4 and 0 < figure["torch_error"] < 1e-4, figure)
            self.assertEqual(figure["scaling"] is None, figure["threads"] == 1)
        return figures

    def test_gram(self):
        figures = self.bench("gram", "--K", "65,130", "--T", 33, "--threads", 2)
        self.assertEqual([(f["name"], f["dtype"], f["K"], f["T"], f["threads"]) for f in figures],
                         [(name, dtype, k, 33, threads) for k in (65, 130) for dtype in ("float32", "bfloat16")
                          for name in ("gram", "gram_large_means") for threads in (1, 2)])
        self.assertNotEqual(figures[0]["error"], figures[2]["error"])
        one = self.bench("gram", "--K", 64, "--T", 7, "--threads", 1)
        self.assertEqual({f["threads"] for f in one}, {1})

    def test_factor(self):
        figures = self.bench("factor", "--K", 97, "--threads", 1)
        self.assertEqual([(f["name"], f["K"], f["T"]) for f in figures], [("factor", 97, 194), ("factor_damped", 97, 25)])

    def test_solve(self):
        """Both solve the same task to about the same error; refining lowers it; the grid and its scales count."""
        def figures(*flags):
            return self.ok("bench", "solve", "--N", 64, "--K", 256, "--threads", 1, *flags, "--json").json()

        searched, plain = figures("--mse", "2.4,0")
        for figure in (searched, plain):
            self.assertEqual({key: figure[key] for key in ("N", "K", "group_size", "refine", "threads")},
                             {"N": 64, "K": 256, "group_size": 128, "refine": 0, "threads": 1})
            self.assertAlmostEqual(figure["error"], figure["torch_error"], delta=0.02 * figure["error"])
            self.assertGreater(min(figure["factor_seconds"], figure["solve_seconds"], figure["ratio_vs_torch"]), 0)
        self.assertLess(searched["error"], plain["error"])
        refined, = figures("--mse", 2.4, "--refine", 2, "--no-torch")
        self.assertLess(refined["error"], searched["error"])
        self.assertIsNone(refined["ratio_vs_torch"])
        row, = figures("--mse", 2.4, "--group-size", -1)
        self.assertGreater(row["error"], searched["error"])

    def test_the_level_in_use(self):
        in_use = self.report("inspect", "--cpu")["cpu_level"]
        for level in (None, "reference"):
            for kernel in ("gram", "factor"):
                figures = self.bench(kernel, "--K", 49, "--threads", 1, level=level)
                self.assertEqual({f["cpu_level"] for f in figures}, {level or in_use})
                self.assertEqual({f["peak_share"] is None for f in figures}, {(level or in_use) == "reference"})

    def test_table(self):
        lines = self.ok("bench", "gram", "--K", 48, "--T", 5, "--threads", 1, "--quick").out.splitlines()
        self.assertEqual(lines[0].split()[0], "kernel")
        self.assertEqual([line.split()[:4] for line in lines[1:]],
                         [[name, dtype, "48", "5"] for dtype in ("float32", "bfloat16") for name in ("gram", "gram_large_means")])

    def test_run(self):
        quantized = self.path("quantized")
        self.ok("quantize", e2e.TINYSTORIES, "-o", quantized, "--method", "rtn")
        found = {}
        for model, threads in ((e2e.TINYSTORIES, 1), (quantized, 1), (quantized, 2)):
            figures = self.report("bench", "run", model, "--prompt", 40, "--decode", 5, "--repeats", 1, "--threads", threads)
            self.assertEqual(set(figures) - {"stderr"}, RUN_KEYS)
            self.assertEqual((figures["model"], figures["threads"], figures["prompt_tokens"], figures["decoded_tokens"]),
                             (str(model), threads, 40, 5))
            for key in RUN_KEYS - {"model", "cpu_level"}:
                self.assertGreater(figures[key], 0, key)
            self.assertAlmostEqual(figures["weight_gbytes_per_second"],
                                   figures["weight_bytes"] * figures["decode_tokens_per_second"] / 1e9)
            found[model] = figures
        # bf16 weights of the layers beside codes of 4 bits and their scales; the head is bf16 in both.
        head = 2 * 256 * 2048
        self.assertGreater(found[e2e.TINYSTORIES]["weight_bytes"] - head, 3 * (found[quantized]["weight_bytes"] - head))
        half = self.report("bench", "run", quantized, "--prompt", 40, "--decode", 5, "--repeats", 1, "--threads", 1, "--dtype", "float32",
                           "--kv-cache-dtype", "float16")
        self.assertEqual(half["kv_cache_bytes"], 6 * 2 * 2 * 64 * 2 * 45)
        lines = self.ok("bench", "run", quantized, "--prompt", 9, "--decode", 2, "--repeats", 2).out.splitlines()
        self.assertEqual([line.split()[0] for line in lines[1:]], ["prompt", "decode"])

    def test_refusals(self):
        self.refused("bench", "run", e2e.TINYSTORIES, "--prompt", 1024, "--decode", 1, says=("1024 + 1", "max_position_embeddings"))
        self.refused("bench", "run", e2e.TINYSTORIES, "--decode", 0, says=("--decode",))
        self.refused("bench", "run", self.path("nowhere"), says=("nowhere",))
        self.assertIn("read bandwidth", self.ok("bench", "run", "--help").out)
        self.refused("bench", says=("subcommand",))
        self.refused("bench", "gram", "--K", 0, says=("--K",))
        self.refused("bench", "factor", "--T", 5, says=("--T",))
        for kernel in ("gram", "factor"):
            text = self.ok("bench", kernel, "--help").out
            for flag in ("--K", "--quick", "--json", "--threads"):
                self.assertIn(flag, text)


if __name__ == "__main__":
    unittest.main()
