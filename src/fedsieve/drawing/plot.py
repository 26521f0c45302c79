"""A picture of curves that stands alone: it shows itself in a notebook and can be saved."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from fedsieve.core.errors import ConfigError
from fedsieve.drawing import svg
from fedsieve.drawing.svg import Axis, Series, tag

PALETTE = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#4a4a4a", "#b3a500",
)  # fmt: skip
DASHES = ("", "8 4", "2 3", "10 3 2 3", "14 5", "5 2", "10 3 2 3 2 3", "1 5")
TITLE_HEIGHT, LEGEND_HEIGHT = 18, 17
# Colours are written out and every rule is for this picture alone: a notebook has styles too.
STYLE = """
.fedsieve text { font: 11px system-ui, sans-serif; fill: #5b6775; }
.fedsieve .end { text-anchor: end; }
.fedsieve .middle { text-anchor: middle; }
.fedsieve .name { fill: #17202a; }
.fedsieve .grid { fill: none; stroke: #dfe4ea; }
.fedsieve .axis, .fedsieve .tick { fill: none; stroke: #5b6775; }
.fedsieve .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.fedsieve .band { stroke: none; fill-opacity: 0.15; }
.fedsieve circle { fill: #ffffff; stroke-width: 1.3; }
.fedsieve .dense circle { fill: none; stroke: none; pointer-events: all; }
"""


class Plot:
    """Curves as SVG: the last line of a notebook's cell shows them, `save` writes them."""

    def __init__(self, title: str, text: Markup) -> None:
        self.title, self.svg, self._text = title, str(text), text

    def save(self, path: str | Path) -> Path:
        """Write the picture to a file that ends in .svg.

        Raises:
            ConfigError: another ending.
        """
        target = Path(path)
        if target.suffix.lower() != ".svg":
            raise ConfigError(f"{target}: pictures are written as SVG. Give a name ending in .svg.")
        target.write_text(self.svg + "\n", encoding="utf-8")
        return target

    def __html__(self) -> Markup:
        return self._text

    _repr_html_ = __html__

    def __repr__(self) -> str:
        return f"<Plot: {self.title}; .save('plot.svg') writes it>"


def plot(series: Sequence[Series], labels: Mapping[int, str], x: Axis, y: Axis, title: str) -> Plot:
    """Curves with a legend below; `labels` names them by their number."""
    drawn = [s for s in series if s.points]
    named = drawn if len(labels) > 1 else []
    picture = svg.curves(drawn, x, y, title, (svg.WIDTH, svg.HEIGHT)) if drawn else ""
    height = TITLE_HEIGHT + (svg.HEIGHT if drawn else 0) + LEGEND_HEIGHT * len(named) + 8
    words = title if drawn else f"{title}: nothing to draw"
    text = tag(
        "svg",
        tag("style", STYLE + "\n".join(_colours(s.run) for s in drawn)),
        tag("rect", width=svg.WIDTH, height=height, rx=8, fill="#ffffff"),
        tag("text", words, x=svg.LEFT, y=15, class_="name"),
        tag("g", picture, transform=f"translate(0 {TITLE_HEIGHT})"),
        *(_entry(s, labels[s.run], i) for i, s in enumerate(named)),
        xmlns="http://www.w3.org/2000/svg",
        class_="fedsieve",
        width=round(1.4 * svg.WIDTH),
        height=round(1.4 * height),
        viewBox=f"0 0 {svg.WIDTH} {height}",
        style="max-width: 100%; height: auto",
    )
    return Plot(title, text)


def _entry(series: Series, label: str, place: int) -> Markup:
    y = TITLE_HEIGHT + svg.HEIGHT + LEGEND_HEIGHT * place + 6
    line = tag("path", class_="line", d=f"M{svg.LEFT} {y}h30")
    dot = tag("circle", cx=svg.LEFT + 15, cy=y, r=2.6)
    words = tag("text", label, x=svg.LEFT + 38, y=y + 4)
    mark = line if len(series.points) > 1 else dot
    return tag("g", mark, words, class_=svg.run_class(series.run))


def _colours(run: int) -> str:
    _, colour, dash = svg.run_class(run).split()
    picked, dashes = PALETTE[int(colour[1:])], DASHES[int(dash[1:])]
    selector = f".fedsieve .{colour}.{dash}"
    return (
        f"{selector} .line {{ stroke: {picked}; stroke-dasharray: {dashes or 'none'}; }}\n"
        f"{selector} .band {{ fill: {picked}; }}\n"
        f"{selector} circle {{ stroke: {picked}; }}"
    )
