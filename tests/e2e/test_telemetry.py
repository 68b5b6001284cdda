"""--telemetry FILE: a line per event, with the fields that docs/telemetry.md names."""
import fcntl
import json
import os
import re
import select
import subprocess
import unittest

import gramian_e2e as e2e
from gramian_e2e import ROOT, TinyModel, random_rows, write_rows


def documented():
    """event -> its fields, from the table of the page."""
    fields = {}
    for line in (ROOT / "docs" / "telemetry.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if match := re.fullmatch(r"`(\w+)`", cells[1] if len(cells) == 5 else ""):
            text = re.sub(r"\([^)]*\)", "", cells[3])
            fields[match.group(1)] = set() if text.startswith("as ") else set(re.findall(r"`(\w+)`", text))
    return fields


class Telemetry(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tiny = TinyModel(vocab=64)
        cls.model = cls.tiny.write(cls.top / "model")
        cls.rows = write_rows(cls.top / "rows.safetensors", random_rows(12, 40, vocab=64))

    def events(self, *flags, name="out", **what):
        file = self.path("events")
        before = len(file.read_text().splitlines()) if file.exists() else 0
        report = self.quantize(self.model, self.path(name), "--telemetry", file, *flags, **{"calibration": self.rows, **what})
        return report, [json.loads(line) for line in file.read_text().splitlines()[before:]]

    def test_every_event_has_the_documented_fields(self):
        report, events = self.events("--lanes", "cpu:2", "--held-out", "2", "--held-out-limit", "0.01")
        fields = documented()
        self.assertEqual({event["event"] for event in events}, set(fields) - {"resume"})
        for event in events:
            if event["event"] != "plan":
                self.assertEqual(set(event) - {"event", "ts"}, fields[event["event"]], event)
        self.assertEqual([event["ts"] for event in events], sorted(event["ts"] for event in events))
        count = {name: sum(event["event"] == name for event in events) for name in fields}
        self.assertEqual((count["pause"], count["merge"], count["factor"]), (8, 8, 8))  # 4 inputs in each of 2 layers
        self.assertEqual((count["solve"], count["write"], count["layer"]), (14, 14, 2))
        self.assertEqual([event["module"] for event in events if event["event"] == "solve"],
                         [module["name"] for module in report["modules"]])
        plan = next(event for event in events if event["event"] == "plan")
        self.assertEqual(plan["peak_bytes"], report["plan"]["peak_bytes"])
        self.assertEqual({event["tokens"] for event in events if event["event"] == "pause"}, {10 * 40})
        self.held_out(report, [event for event in events if event["event"] == "held_out"])

    def held_out(self, report, events):
        """Rows that no statistic saw: a figure for each layer and module, in the report and at once."""
        of = report["held_out"]
        self.assertEqual((of["rows"], of["tokens"], of["limit"], report["rows"], report["tokens"]), (2, 80, 0.01, 10, 400))
        self.assertEqual(of["layers"], [{key: value for key, value in event.items() if key not in ("event", "ts", "seconds")} for event in events])
        self.assertEqual([layer["layer"] for layer in of["layers"]], [0, 1])
        self.assertGreater(report["plan"]["parts"]["held-out rows"], 0)
        self.assertEqual(of["layers"][0]["error"], of["layers"][0]["accumulated"])
        errors = {module["name"]: module["held_out_error"] for module in report["modules"]}
        for module in report["modules"]:
            self.assertTrue(module["relative_error"] / 3 < module["held_out_error"] < module["relative_error"] * 3, module)
        for layer in of["layers"]:
            names = [name for name in errors if f"layers.{layer['layer']}." in name]
            self.assertTrue(0 < layer["error"] < 0.5, layer)
            self.assertEqual(errors[layer["worst_module"]], max(errors[name] for name in names))
            self.assertEqual({flagged["module"] for flagged in layer["flagged"]}, {name for name in names if errors[name] > 0.01})

    def test_runs_append(self):
        self.events(name="a")
        _, events = self.events(name="b", method="rtn", calibration=None)
        self.assertEqual([event["event"] for event in events], ["start"] + (["solve", "write"] * 7 + ["layer"]) * 2 + ["verify", "end"])

    def test_metrics_and_layers(self):
        """--metrics keeps how far the job is for Prometheus; logs have a line for each layer."""
        file = self.path("gramian.prom")
        result = self.ok("quantize", self.model, "-o", self.path("out"), "--calibration", self.rows, "--metrics", file, "--memory", "2GiB",
                         "--held-out", "2", "--held-out-limit", "0.001")
        found = dict(re.fullmatch(r'gramian_(\w+)\{output="(?:.*)/out"\} (.*)', line).groups()
                     for line in file.read_text().splitlines() if not line.startswith("#"))
        expected = {"layers": 2, "finished_layers": 2, "modules": 14, "solved_modules": 14, "fallbacks": 0, "calibration_tokens": 10 * 40,
                    "seconds_left": 0, "memory_limit_bytes": 2 << 30, "finished": 1}
        self.assertEqual({key: float(found[key]) for key in expected}, expected)
        self.assertGreater(float(found["resident_bytes"]), 1e6)
        self.assertEqual(len(re.findall(r"^layer [12] of 2: [\d.]+ s, most lost in model\.layers\.[\w.]+ \([\d.]+ %\), [\d.]+ % off on held-out rows", result.err, re.M)), 2, result.err)
        self.assertEqual(len(re.findall(r"^warning: layer [01]: its output on held-out rows is [\d.]+ % off; model\.\S+ loses most", result.err, re.M)), 2, result.err)
        self.refused("quantize", self.model, "-o", self.path("other"), "--calibration", self.rows, "--held-out", "12", says=["--held-out", "leave none"])
        self.refused("quantize", self.model, "-o", self.path("other"), "--calibration", self.rows, "--metrics", self.path("no/file"),
                     says=["no/file"])

    def test_watchdog(self):
        """A job that stands (nobody reads the pipe that its telemetry goes into) says where; --watchdog 0 says nothing."""
        for patience, words in ((1, "nothing has moved for 1.0 s: layer "), (0, None)):
            pipe = self.path(f"pipe{patience}")
            os.mkfifo(pipe)
            reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
            fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
            job = subprocess.Popen([e2e.BINARY, "quantize", self.model, "-o", self.path(f"out{patience}"), "--calibration", self.rows,
                                    "--watchdog", str(patience), "--telemetry", pipe], stderr=subprocess.PIPE, text=True)
            heard = ""
            if words:
                while words not in heard:
                    line = job.stderr.readline()
                    self.assertTrue(line, heard)
                    heard += line
            # Before the job has opened its end, a read would say that nobody writes.
            self.assertTrue(select.select([reader], [], [], 60)[0])
            os.set_blocking(reader, True)
            while os.read(reader, 65536):
                pass
            os.close(reader)
            rest = job.communicate(timeout=60)[1]
            self.assertEqual(job.returncode, 0, heard + rest)
            if not words:
                self.assertNotIn("nothing has moved", rest)

    def test_files_that_cannot_be(self):
        self.refused("quantize", self.model, "-o", self.path("out"), "--calibration", self.rows, "--telemetry", self.path("no/file"),
                     says=("no/file", "--telemetry"), code=1)
        result = self.ok("quantize", self.model, "-o", self.path("out"), "--calibration", self.rows, "--telemetry", "/dev/full")
        self.assertIn("warning: /dev/full: telemetry ends here: No space left on device", result.err)
        self.assertEqual(result.err.count("telemetry ends here"), 1)


if __name__ == "__main__":
    unittest.main()
