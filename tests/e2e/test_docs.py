"""What the documentation says of the program is so."""
import re
import unittest

import gramian_e2e as e2e

DOCS = e2e.ROOT / "docs"


class Docs(e2e.GramianTestCase):
    def test_every_option_stands_on_the_page(self):
        """docs/options.md is what the program says of itself; `make docs` writes it."""
        self.assertEqual((DOCS / "options.md").read_text(), self.ok("options").out)

    def test_messages_are_the_programs_own(self):
        """Messages that docs/troubleshooting.md quotes stand in the sources."""
        sources = "".join(p.read_text() for p in [*e2e.ROOT.glob("src/**/*.cpp"), e2e.ROOT / "tools/setup.sh"])
        quoted = re.findall(r'"([^"]+)"', (DOCS / "troubleshooting.md").read_text())
        self.assertGreater(len(quoted), 5)
        for message in quoted:
            for part in message.split(" ... "):
                self.assertIn(part, sources, message)

    def test_options_that_pages_name_exist(self):
        known = set(re.findall(r"--[a-z][a-z0-9-]+", (DOCS / "options.md").read_text()))
        for page in ("quickstart", "choosing", "troubleshooting"):
            for option in re.findall(r"--[a-z][a-z0-9-]+", (DOCS / f"{page}.md").read_text()):
                self.assertIn(option, known, page)


if __name__ == "__main__":
    unittest.main()
