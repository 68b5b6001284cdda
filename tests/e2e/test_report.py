"""The page that the demo ends with: what it shows is what the document says, and it needs nothing but itself."""
import copy
import html.parser
import json
import re
import shlex
import shutil
import subprocess
import unittest

import gramian_e2e as e2e
from gramian_e2e import BINARY, TINYSTORIES

VOID = {"meta", "link", "br", "rect", "line"}  # SVG's shapes close themselves
VARIANTS = ["original", "rtn-g128", "gptq-g128", "qqq-g128", "qqq-row", "w4a8-g128"]


class Element:
    def __init__(self, tag, attributes):
        self.tag, self.attributes, self.children = tag, dict(attributes), []

    def all(self, *tags):
        """Descendants with one of these tags, in order."""
        for child in self.children:
            if isinstance(child, Element):
                if child.tag in tags:
                    yield child
                yield from child.all(*tags)

    def one(self, tag, **attributes):
        found = [e for e in self.all(tag) if all(e.attributes.get(k) == v for k, v in attributes.items())]
        if len(found) != 1:
            raise AssertionError(f"{len(found)} elements <{tag}> with {attributes}")
        return found[0]

    def text(self):
        return "".join(child if isinstance(child, str) else child.text() for child in self.children)

    def numbers(self):
        """(exact value, shown text) of each number."""
        return [(float(data.attributes["value"]), data.text()) for data in self.all("data")]


class Page(html.parser.HTMLParser):
    """The tree of a page; raises at the first tag that does not balance."""

    def __init__(self, text):
        super().__init__()
        self.root = Element("", ())
        self.open = [self.root]
        self.feed(text)
        self.close()
        if len(self.open) != 1:
            raise AssertionError(f"not closed: {[e.tag for e in self.open]}")

    def handle_starttag(self, tag, attrs):
        element = Element(tag, attrs)
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.open[-1].children.append(Element(tag, attrs))

    def handle_endtag(self, tag):
        if self.open[-1].tag != tag:
            raise AssertionError(f"</{tag}> closes <{self.open[-1].tag}> at {self.getpos()}")
        self.open.pop()

    def handle_data(self, data):
        self.open[-1].children.append(data)


def rows_of(table):
    """Body rows as (head, {column: cell}); columns by the heads' texts."""
    head, *body = table.all("tr")
    columns = [" ".join(cell.text().split()) for cell in head.all("th")]
    for row in body:
        cells = list(row.all("th", "td"))
        yield cells[0].one("bdi").text(), dict(zip(columns[1:], cells[1:], strict=True))


class DemoPage(e2e.GramianTestCase):
    @classmethod
    def setUpClass(cls):
        """One short demo, in a folder whose name a shell must quote."""
        super().setUpClass()
        cls.place = cls.top / "it's here"
        model = cls.place / "my models" / "tinystories"
        shutil.copytree(TINYSTORIES, model)
        text = (model / "heldout.txt").read_text(encoding="utf-8")
        (model / "heldout.txt").write_text(text[:6000], encoding="utf-8")
        process = cls.run_there(BINARY, "demo", "--model", "my models/tinystories", "--samples", "4", "--sequence-length", "64",
                                "--output", "out & more", "--json", "--quiet")
        if process.returncode != 0:
            raise RuntimeError(process.stderr.decode())
        cls.printed = process.stdout
        cls.document = json.loads(process.stdout)
        cls.written = {v: json.loads((cls.place / "out & more" / v / e2e.REPORT).read_text()) for v in VARIANTS[1:]}
        cls.html = (cls.place / "report.html").read_text(encoding="utf-8")
        cls.page = Page(cls.html).root

    @classmethod
    def run_there(cls, *command):
        return subprocess.run(command, cwd=cls.place, capture_output=True, check=False)

    def render(self, document, name="page.html"):
        source = self.path("document.json")
        source.write_text(json.dumps(document))
        self.ok("report", source, "-o", self.path(name))
        return Page(self.path(name).read_text(encoding="utf-8")).root

    def near(self, number, expected, unit=1.0):
        """The exact value is the document's; what is shown is that value rounded."""
        value, text = number
        self.assertEqual(value, expected)
        shown = re.fullmatch(r"([\d,]+(?:\.(\d+))?)(?:\s(?:%|s|.?B))?", text)
        self.assertIsNotNone(shown, text)
        half_a_digit = 0.5 * 10.0 ** -len(shown[2] or "")
        self.assertAlmostEqual(float(shown[1].replace(",", "")), expected * unit, delta=1.001 * half_a_digit, msg=text)

    def test_document(self):
        self.assertEqual([row["variant"] for row in self.document["rows"]], VARIANTS)
        self.assertEqual(self.document["model"], "tinystories")
        self.assertEqual(self.document["held_out_tokens"], 63 * self.document["held_out_rows"])
        self.assertRegex(self.document["date"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertEqual({row["variant"]: row["job"] for row in self.document["rows"]}, {"original": None, **self.written})

    def test_needs_nothing_but_itself(self):
        self.assertNotRegex(self.html, r"(?i)https?://|@import|url\(|//cdn")
        for element in self.page.all(*{e.tag for e in self.page.all("link", "script", "img", "iframe", "object", "use", "a")}):
            self.assertNotIn("src", element.attributes)
            self.assertIn(element.attributes.get("href", "data:,"), ("data:,",))
        self.assertIn("default-src 'none'", self.html)

    def test_readable_without_script_and_by_ear(self):
        hidden = [e.attributes.get("id") or e.attributes["class"] for e in self.page.all("div", "p", "button", "section", "table")
                  if "hidden" in e.attributes]
        self.assertLessEqual(set(hidden), {"theme", "switch", "detail"})
        levels = [int(e.tag[1]) for e in self.page.all("h1", "h2", "h3", "h4")]
        self.assertEqual(levels[0], 1)
        self.assertEqual(levels.count(1), 1)
        self.assertTrue(all(b - a <= 1 for a, b in zip(levels, levels[1:])))
        ids = [e.attributes["id"] for e in self.page.all("h2", "section", "p", "button") if "id" in e.attributes]
        self.assertEqual(len(ids), len(set(ids)))
        for section in self.page.all("section"):
            self.assertIn(section.attributes["aria-labelledby"], ids)
        for table in self.page.all("table"):
            self.assertTrue(table.one("caption").text())
            self.assertTrue(all("scope" in head.attributes for head in table.all("th")))
        for drawing in self.page.all("svg"):
            self.assertEqual(drawing.attributes["aria-hidden"], "true")

    def test_table_of_results(self):
        table = self.page.one("section", id="results").one("table")
        shown = dict(rows_of(table))
        self.assertEqual(list(shown), VARIANTS)
        for row in self.document["rows"]:
            cells = shown[row["variant"]]
            for column, key, unit in (("Size", "bytes", None), ("Bits per weight", "bits_per_weight", 1),
                                      ("Perplexity", "perplexity", 1), ("Peak memory", "peak_rss_bytes", None)):
                number = cells[column].numbers()[0]
                self.near(number, row[key], unit or {"kB": 1e-3, "MB": 1e-6, "GB": 1e-9}[number[1].split()[-1]])
            if row["variant"] == "original":
                self.assertIn("the reference", cells["KL to original, nats"].text())
                self.assertEqual(cells["Time"].numbers(), [])
                continue
            mean, low, high = cells["KL to original, nats"].numbers()
            self.near(mean, row["kl_mean"])
            self.near(low, row["kl_ci95"][0])
            self.near(high, row["kl_ci95"][1])
            self.near(cells["Same best token"].numbers()[0], row["top1_agreement"], 100)
            self.near(cells["Time"].numbers()[0], row["seconds"])

    def test_bars(self):
        """Widths of bars and places of whiskers are shares of the largest."""
        rows = {row["variant"]: row for row in self.document["rows"]}
        end = max(row["kl_ci95"][1] for row in rows.values())
        for name, cells in rows_of(self.page.one("section", id="results").one("table")):
            if name != "original":
                cell = cells["KL to original, nats"]
                low, high = rows[name]["kl_ci95"]
                drawn = [cell.one("rect").attributes["width"], *(next(cell.all("line")).attributes[x] for x in ("x1", "x2"))]
                for place, value in zip(drawn, (rows[name]["kl_mean"], low, high), strict=True):
                    self.assertAlmostEqual(float(place.rstrip("%")), 100 * value / end, delta=0.01)
        largest = max(row["peak_rss_bytes"] for row in rows.values())
        for name, cells in rows_of(list(self.page.one("section", id="cost").all("table"))[1]):
            width = re.search(r"width: ([\d.]+)%", cells["Bar"].one("i").attributes["style"])
            self.assertAlmostEqual(float(width[1]), 100 * rows[name]["peak_rss_bytes"] / largest, delta=0.01)

    def test_stages(self):
        shown = dict(rows_of(next(self.page.one("section", id="cost").all("table"))))
        self.assertEqual(list(shown), VARIANTS[1:])
        for row in self.document["rows"][1:]:
            cells, stages = shown[row["variant"]], row["job"]["stages"]
            for stage, seconds in stages.items():
                self.assertEqual(cells[stage].numbers()[0][0], seconds)
            self.assertAlmostEqual(cells["other"].numbers()[0][0], row["seconds"] - sum(stages.values()), places=9)
            self.assertEqual(cells["total"].numbers()[0][0], row["seconds"])
            widths = [float(part.attributes["style"].split()[1].rstrip("%;")) for part in cells["Bar"].all("i")]
            longest = max(r["seconds"] for r in self.document["rows"])
            self.assertAlmostEqual(sum(widths), 100 * row["seconds"] / longest, delta=0.1)

    def heat_maps(self, page):
        """{variant: {module's title: cell}}"""
        return {div.attributes["data-name"]: {cell.attributes["title"].split(":")[0]: cell for cell in div.all("td")}
                for div in page.all("div") if div.attributes.get("class") == "map"}

    def check_heat(self, page, document):
        measured = {row["variant"]: row["job"]["modules"] for row in document["rows"][1:]
                    if any(m.get("relative_error") is not None for m in row["job"]["modules"])}
        maps = self.heat_maps(page)
        self.assertEqual(list(maps), list(measured))
        for variant, modules in measured.items():
            self.assertEqual(set(maps[variant]), {m["name"] for m in modules})
            for module in modules:
                cell = maps[variant][module["name"]]
                if module.get("relative_error") is None:
                    self.assertEqual((cell.attributes["class"], cell.text()), ("unmeasured", "not measured"))
                else:
                    self.near(cell.numbers()[0], module["relative_error"], 100)
        return maps

    def test_errors_of_this_run(self):
        self.check_heat(self.page, self.document)

    def test_errors_of_a_document(self):
        document = copy.deepcopy(self.document)
        for row in document["rows"][1:]:
            for i, module in enumerate(row["job"]["modules"]):
                module["relative_error"] = None if row["variant"] == "rtn-g128" or i == 5 else 0.01 * 1.1 ** i
        maps = self.check_heat(self.render(document), document)
        self.assertEqual(list(maps), VARIANTS[2:])
        classes = [cell.attributes["class"] for cell in maps["qqq-row"].values()]
        steps = [int(name[1]) for name in classes if name != "unmeasured"]
        self.assertEqual((len(steps), steps, set(steps)), (41, sorted(steps), set(range(8))))

    def test_stories(self):
        document = {**self.document, "prompt": "Once", "stories": {"original": "upon a time <b>", "qqq-g128": "upon a hill <b>"}}
        section = self.render(document).one("section", id="story")
        self.assertIn("Once", section.text())
        texts = [article.one("p") for article in section.all("article")]
        self.assertEqual([text.text() for text in texts], ["upon a time <b>", "upon a hill <b>"])
        self.assertEqual([next(text.all("mark")).text() for text in texts], ["time <b>", "hill <b>"])
        self.assertEqual(len(list(self.page.all("article"))), 2 if "stories" in self.document else 0)

    def test_commands_repeat_the_run(self):
        shown = [" ".join(item.text().split()) for item in self.page.one("ul", **{"class": "commands"}).all("li")]
        self.assertEqual(shown, self.document["commands"])
        rows = {row["variant"]: row for row in self.document["rows"]}
        weights = {v: self.place / "out & more" / v / "model.safetensors" for v in VARIANTS[1:]}
        before = {variant: path.read_bytes() for variant, path in weights.items()}
        demo, *parts = (shlex.split(command) for command in self.document["commands"])
        self.assertEqual(demo, ["gramian", "demo", "--model", "my models/tinystories", "--output", "out & more", "--prompt",
                                "One day, a girl named Lily found a small box in the garden.", "--samples", "4",
                                "--sequence-length", "64"])
        self.assertEqual(len(parts), 2 * len(VARIANTS[1:]))
        for command in parts:
            self.assertEqual(command[0], "gramian")
            process = self.run_there(BINARY, *command[1:], "--json")
            self.assertEqual(process.returncode, 0, process.stderr.decode())
            if command[1] == "eval":
                result, row = json.loads(process.stdout), rows[command[2].rsplit("/", 1)[1]]
                for key in ("perplexity", "kl_mean", "top1_agreement"):
                    self.assertAlmostEqual(result[key] / row[key], 1, places=6)
        self.assertEqual({variant: path.read_bytes() for variant, path in weights.items()}, before)

    def test_colours(self):
        """Contrast of text, light and dark: at least 4.5 (WCAG AA)."""
        style = self.page.one("style").text()
        colours = {name: pair for name, *pair in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", style)}

        def luminance(colour):
            parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
            r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
            return 0.2126 * r + 0.7152 * g + 0.0722 * b
        pairs = [("ink", "paper"), ("muted", "paper"), ("ink", "panel"), ("mark-ink", "mark"), ("on-mid", "heat-4")]
        pairs += [("on-low", f"heat-{i}") for i in range(4)] + [("on-high", f"heat-{i}") for i in range(5, 8)]
        for text, ground in pairs:
            for mode in (0, 1):
                low, high = sorted(luminance(colours[name][mode]) for name in (text, ground))
                self.assertGreaterEqual((high + 0.05) / (low + 0.05), 4.5, (text, ground, mode))
        # Lightness alone tells the steps apart.
        for mode, sign in ((0, -1), (1, 1)):
            light = [sign * luminance(colours[f"heat-{i}"][mode]) for i in range(8)]
            self.assertEqual(light, sorted(light))

    def test_same_page_again(self):
        self.path("saved.json").write_bytes(self.printed)
        result = self.report("report", self.path("saved.json"), "-o", self.path("again.html"))
        self.assertEqual(result["output"], str(self.path("again.html")))
        self.assertEqual(self.path("again.html").read_text(encoding="utf-8"), self.html)
        # A page of ours is replaced, whatever it shows.
        self.render({**self.document, "model": "another"}, name="again.html")
        self.assertIn("another", self.path("again.html").read_text(encoding="utf-8"))

    def test_where_a_page_may_go(self):
        self.path("saved.json").write_bytes(self.printed)
        self.path("mine.html").write_text("<!doctype html>\n<p>mine")
        self.path("folder").mkdir()
        self.path("pipe.html").symlink_to("/dev/null")
        foreign = "not a page of gramian"
        for name, says in (("mine.html", foreign), ("saved.json", foreign), ("pipe.html", foreign), ("folder", "is a folder"),
                           ("folder/", "no file name"), ("none/page.html", "no folder")):
            target = f"{self.folder}/{name}"
            self.refused("report", self.path("saved.json"), "-o", target, says=(target, says))
            self.refused("demo", "--model", TINYSTORIES, "-o", self.path("out"), "--page", target, says=(target, says))
        self.assertEqual(self.path("mine.html").read_text(), "<!doctype html>\n<p>mine")

    def test_another_page_or_none(self):
        model = self.place / "my models" / "tinystories"
        flags = ("demo", "--model", model, "--samples", "2", "--sequence-length", "32", "-o", self.path("out"))
        result = self.ok(*flags, "--page", self.path("other.html"))
        self.assertIn(str(self.path("other.html")), result.out)
        Page(self.path("other.html").read_text(encoding="utf-8"))
        process = subprocess.run([BINARY, *map(str, flags), "--page", ""], cwd=self.folder, capture_output=True, check=False)
        self.assertEqual(process.returncode, 0)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["other.html", "out"])

    def test_documents_that_do_not_fit(self):
        source = self.path("bad.json")

        def refused(text, *says):
            source.write_bytes(text if isinstance(text, bytes) else text.encode())
            with self.subTest(text=text[:80], says=says):
                self.refused("report", source, "-o", self.path("page.html"), says=(source, *says))
        whole = self.printed.decode()
        refused("", "JSON")
        refused(whole[:-20], "JSON")
        refused(whole[:3000] + "\0" + whole[3000:], "NUL")
        refused("[" * 100000, "nested")
        refused("[]", "expected an object, found array")
        refused("{}", "gramian is missing")
        refused('{"gramian": "1", "gramian": "2"}', "duplicate key")
        refused(b'{"gramian": "\xff"}', "JSON")
        for key in ("libtorch", "model", "date", "cpu", "rows", "commands"):
            refused(json.dumps({k: v for k, v in self.document.items() if k != key}), f"{key} is missing", "gramian demo --json")
            refused(json.dumps({**self.document, key: {"a": 1}}), key, "found object")
        for place, value, says in (("variant", 7, "variant: expected a text"), ("bytes", "many", "bytes: expected a number"),
                                   ("kl_mean", None, "kl_mean is missing"), ("job", [], "job: expected an object")):
            rows = copy.deepcopy(self.document["rows"])
            rows[2][place] = value
            refused(json.dumps({**self.document, "rows": rows}), "rows[2]." + says)
        rows = copy.deepcopy(self.document["rows"])
        rows[3]["job"]["modules"][4]["relative_error"] = "\x1b[31mred"
        refused(json.dumps({**self.document, "rows": rows}), "rows[3].job.modules[4].relative_error: expected a number", "\\x1b")
        self.refused("report", self.path("none.json"), says=(self.path("none.json"),))
        self.refused("report", self.folder, says=(self.folder,))


class JobPage(e2e.GramianTestCase):
    """gramian report of a quantization: its folder, and its telemetry when it broke off."""

    def job(self, *flags):
        model = e2e.TinyModel().write(self.path("model"))
        rows = e2e.write_rows(self.path("rows.safetensors"), e2e.random_rows(8, 40))
        self.ok("quantize", model, "-o", self.path("out"), "--calibration", rows, *flags)
        return self.path("out"), json.loads((self.path("out") / e2e.REPORT).read_text())

    def page(self, *arguments):
        self.ok("report", *arguments, "-o", self.path("page.html"))
        text = self.path("page.html").read_text(encoding="utf-8")
        return text, Page(text).root

    def test_of_an_output(self):
        telemetry = self.path("telemetry.jsonl")
        out, report = self.job("--telemetry", telemetry)
        text, page = self.page(out, "--telemetry", telemetry)
        largest = max(report["modules"], key=lambda m: m["relative_error"])
        worst = list(rows_of(page.one("section", id="worst").one("table")))
        self.assertEqual(len(worst), 10)
        self.assertEqual(worst[0][0], largest["name"])
        self.assertEqual(worst[0][1]["Error"].numbers()[0][0], largest["relative_error"])
        self.assertEqual(worst[0][1]["Tokens"].numbers()[0][0], largest["samples"])
        errors = [value for value, _ in page.one("section", id="errors").numbers()]
        self.assertEqual(sorted(errors), sorted(m["relative_error"] for m in report["modules"]))
        self.assertIn("polyline", text)
        command = shlex.split("".join(page.one("code").text()))
        self.assertEqual(command[:2], ["gramian", "quantize"])
        self.assertIn(str(telemetry), command)
        self.assertFalse(list(e for e in page.all("section") if e.attributes["id"] == "results"))
        # Without its telemetry the page has no line of memory; the report alone serves, too.
        without, _ = self.page(out / e2e.REPORT)
        self.assertNotIn("<polyline", without)

    def test_evaluation_and_continuations(self):
        """Sliding windows of eval on the page, and both models' answers to what was asked and to the beginnings of rows."""
        out, text = self.path("out"), TINYSTORIES / "heldout.txt"
        self.quantize(TINYSTORIES, out, method="rtn", calibration=None)
        found = self.ok("eval", out, "--reference", TINYSTORIES, "--text", text, "--samples", "1", "--window", "256", "--stride", "128",
                        "--json").json()
        self.assertEqual((found["window"], found["stride"], found["rows"]), (256, 128, 1))
        self.assertEqual([part["context"] for part in found["by_position"]], [[1 << i, (2 << i) - 1] for i in range(8)])
        self.assertEqual(sum(part["tokens"] for part in found["by_position"]), found["tokens"])
        mean = sum(part["tokens"] * part["kl_mean"] for part in found["by_position"]) / found["tokens"]
        self.assertAlmostEqual(mean, found["kl_mean"], places=6)
        self.path("eval.json").write_text(json.dumps(found))
        self.refused("report", out, "-o", self.path("page.html"), "--evaluation", out, says=(out, "is a folder, expected a file"))
        _, page = self.page(out, "--evaluation", self.path("eval.json"), "--reference", TINYSTORIES, "--prompt", "Once upon a time",
                            "--text", text)
        numbers = [value for value, _ in page.one("section", id="positions").numbers()]
        self.assertEqual(numbers, [value for part in found["by_position"] for value in (part["kl_mean"], part["tokens"])])
        section = page.one("section", id="story")
        self.assertEqual([p.text() for p in section.all("p") if p.attributes.get("class") == "prompt"][0], "Prompt: Once upon a time")
        texts = [article.one("p").text() for article in section.all("article")]
        self.assertEqual(len(texts), 2 * (1 + 3))
        for folder, answer in ((TINYSTORIES, texts[0]), (out, texts[1])):
            said = self.ok("generate", folder, "-p", "Once upon a time", "--raw", "--temperature", "0", "-n", "120", "--json").json()["text"]
            self.assertEqual(answer, said)
        self.refused("report", out, "--reference", TINYSTORIES, "-o", self.path("page.html"), says=["--prompt"])
        self.refused("eval", out, "--text", text, "--window", "8", "--stride", "8", says=["--stride", "not shorter than --window"])

    def test_of_a_job_that_broke_off(self):
        telemetry = self.path("telemetry.jsonl")
        self.job("--telemetry", telemetry)
        lines = telemetry.read_text().splitlines(keepends=True)
        at = next(i for i, line in enumerate(lines) if json.loads(line)["event"] == "layer")
        cut = self.path("cut.jsonl")
        cut.write_text("".join(lines[:at + 3]) + lines[at + 3][:20])
        _, page = self.page(cut)
        self.assertIn("Not finished: 1 of 2 layers are done", page.one("p", **{"class": "lead"}).text())

    def test_refusals(self):
        empty = self.path("empty")
        empty.mkdir()
        for name, content, words in (("a.json", "[1]", "expected an object"), ("b.json", '{"method": "qqq"}', "gramian is missing"),
                                     ("c.jsonl", '{"event": "start", "ts": 1}\n', "line 1"), ("d.json", "{", "d.json")):
            self.path(name).write_text(content)
            self.refused("report", self.path(name), "-o", self.path("page.html"), says=[words])
        self.refused("report", empty, "-o", self.path("page.html"), says=["holds no gramian-report.json", "--telemetry"])
        self.refused("report", self.path("missing"), "-o", self.path("page.html"), says=["missing"])
        self.assertFalse(self.path("page.html").exists())


if __name__ == "__main__":
    unittest.main()
