"""A real browser for tests of pages: what a page looks like and does after its script has run."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--enable-logging=stderr", "--virtual-time-budget=4000",
)  # fmt: skip
FRAME = """<!DOCTYPE html><body><iframe id="page" width="{width}" height="900" srcdoc="{page}">
</iframe><script>addEventListener("load", () => {{
  const inner = document.getElementById("page").contentDocument.documentElement;
  document.documentElement.dataset.seen = inner.dataset.seen;
}});</script></body>"""
LISTEN = """<script>const errors = [];
addEventListener("error", (e) => errors.push(String(e.message)));
console.error = (...words) => errors.push(words.join(" "));</script>"""


def found():
    """The path of a browser on this machine, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def visit(page: Path, folder: Path) -> tuple[str, list[str]]:
    """The page as it stands after its own script, and what it said on the console."""
    command = [found(), *FLAGS, f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def probe(page: Path, script: str, width: int, folder: Path):
    """What `script` (a function's body) returns inside the page at this width, with `errors`.

    The page is put in a frame of that width, because a window has a least one; its policy, which
    allows no script but its own, is taken out for the occasion.
    """
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', LISTEN, page.read_text())
    ending = f"document.documentElement.dataset.seen = JSON.stringify((() => {{{script}}})());"
    text = text.replace("</body>", f"<script>{ending}</script></body>")
    framed = folder / f"framed-{width}.html"
    framed.write_text(FRAME.format(width=width, page=html.escape(text)))
    dom, said = visit(framed, folder)
    seen = re.search(r'<html[^>]* data-seen="([^"]*)"', dom)
    assert seen, f"the script did not finish: {said}"
    return json.loads(html.unescape(seen[1]))
