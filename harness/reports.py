# SPDX-License-Identifier: LGPL-2.1-or-later
"""The output of --report: data/report.html with the answer behind it, and a browser's drawing of that."""

import html.parser
import json
import os
import shutil
import subprocess

import helpers
import pytest

TEMPLATE = helpers.ROOT / "data/report.html"


def answer_of(report):
    """The answer in it; the page around it is ours, and nothing is loaded from elsewhere."""
    text, template = report.read_text(), TEMPLATE.read_text()
    assert text.startswith(template) and text.endswith("</script>\n</body>\n</html>\n")
    data = text[len(template):-len("</script>\n</body>\n</html>\n")]
    assert "<" not in data and data.isascii() and "url(" not in text and "src=" not in text and "href=" not in text
    return json.loads(data)


class Drawing(html.parser.HTMLParser):
    """A report as a browser has drawn it: `text` that is seen, and `shapes`, (tag, class) in order."""

    def __init__(self, report, folder):
        super().__init__()
        self.text, self.shapes, self.hidden = "", [], False
        browser = shutil.which("chromium") or pytest.skip("chromium is not installed")
        shown = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/browser", "--dump-dom",
                                report.as_uri()], capture_output=True, text=True, timeout=helpers.PATIENCE, check=True, env={**os.environ, "HOME": str(folder)})
        self.feed(shown.stdout)
        assert "<h1>" in shown.stdout, shown.stderr

    def handle_starttag(self, tag, attributes):
        self.hidden = tag in ("script", "style", "noscript")
        self.shapes.append((tag, dict(attributes).get("class")))

    def handle_endtag(self, tag):
        self.hidden = self.hidden and tag not in ("script", "style", "noscript")

    def handle_data(self, data):
        self.text += "" if self.hidden else data
