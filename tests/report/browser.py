"""Pages as parsed, and as they look and act in a real browser after their script has run."""

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
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
WALK = """  // count columns, open all, point at a curve, step over a heat map, use every button
const tip = document.getElementById("tip");
const say = () => (tip.hidden ? "" : tip.textContent);
const at = (x, y, to) => to.dispatchEvent(new PointerEvent(
  "pointermove", {clientX: x, clientY: y, bubbles: true, pointerType: "mouse"}));
const press = (to, key) => to.dispatchEvent(
  new KeyboardEvent("keydown", {key, bubbles: true}));
const seen = {width: innerWidth, errors};
seen.scroll = document.documentElement.scrollWidth;
seen.columns = [...document.querySelectorAll(".overview thead th")].filter(
  (head) => head.getBoundingClientRect().width).length;
const fits = document.querySelector(".overview").parentElement;
seen.fits = fits.scrollWidth <= fits.clientWidth;
const open = () => document.querySelectorAll("details.part[open]").length;
seen.closed = open();
document.getElementById("open").click();
seen.opened = open();
const chart = document.querySelector(".curves");
const box = chart.querySelectorAll("circle")[1].getBoundingClientRect();
at(box.left + 2, box.top + 2, chart);
seen.hover = say();
const own = tip.getBoundingClientRect();
seen.inside = own.left >= 0 && own.right <= innerWidth;
press(chart, "ArrowRight");
seen.next = say();
press(chart, "Escape");
seen.gone = say();
const heat = [...document.querySelectorAll(".heat")].pop();
press(heat, "ArrowRight"); press(heat, "ArrowRight");
seen.cell = say();
const hidden = () => [...document.querySelectorAll("[data-panel]")].map((p) => p.hidden);
seen.before = hidden();
document.querySelectorAll(".choice")[1].click();
seen.after = hidden();
document.querySelector("[data-toggle='1']").click();
seen.off = document.querySelectorAll("g.off").length;
const ground = () => getComputedStyle(document.body).backgroundColor;
seen.light = ground();
document.getElementById("theme").click();
seen.dark = ground();
return seen;
"""


class Elements(HTMLParser):
    """All elements with their attributes; complains where tags do not match."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, name, attributes):
        self.found.append((name, dict(attributes)))
        self.open.append(name)

    def handle_startendtag(self, name, attributes):
        self.found.append((name, dict(attributes)))

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def having(self, *names):
        return [a for _, a in self.found if all(name in a for name in names)]


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
