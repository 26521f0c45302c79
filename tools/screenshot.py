"""The picture of a report page in docs/figures: the top of the newest demo's page, or of any.

    python tools/screenshot.py [runs/demo-1/report.html]

Needs Chromium or Chrome.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

OUT = Path(__file__).resolve().parents[1] / "docs" / "figures" / "report.png"
NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT, SCALE, COLOURS = 1200, 655, 1.5, 128
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def main(arguments: list[str]) -> None:
    """Draw a page and store it with few colours: it has few."""
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        sys.exit(f"none of {', '.join(NAMES)} is installed")
    pages = sorted(Path("runs").glob("demo-*/report.html"), key=lambda path: path.stat().st_mtime)
    page = Path(arguments[0]) if arguments else pages[-1] if pages else None
    if page is None or not page.exists():
        sys.exit("no report page: run `fedsieve demo` first, or name one")
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder) / "page.png"
        command = [
            browser, *FLAGS, f"--user-data-dir={folder}/profile", f"--screenshot={drawn}",
            f"--window-size={WIDTH},{HEIGHT}", f"--force-device-scale-factor={SCALE}",
            page.absolute().as_uri(),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        picture = Image.open(drawn).convert("RGB").quantize(COLOURS)
        picture.save(OUT, optimize=True)
    print(f"{OUT}  {OUT.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
