"""--telemetry FILE: a line per event, with the fields that docs/telemetry.md names."""
import json
import re
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
        report, events = self.events("--lanes", "cpu:2")
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
        self.assertEqual({event["tokens"] for event in events if event["event"] == "pause"}, {12 * 40})

    def test_runs_append(self):
        self.events(name="a")
        _, events = self.events(name="b", method="rtn", calibration=None)
        self.assertEqual([event["event"] for event in events], ["start"] + (["solve", "write"] * 7 + ["layer"]) * 2 + ["verify", "end"])

    def test_files_that_cannot_be(self):
        self.refused("quantize", self.model, "-o", self.path("out"), "--calibration", self.rows, "--telemetry", self.path("no/file"),
                     says=("no/file", "--telemetry"), code=1)
        result = self.ok("quantize", self.model, "-o", self.path("out"), "--calibration", self.rows, "--telemetry", "/dev/full")
        self.assertIn("warning: /dev/full: telemetry ends here: No space left on device", result.err)
        self.assertEqual(result.err.count("telemetry ends here"), 1)


if __name__ == "__main__":
    unittest.main()
