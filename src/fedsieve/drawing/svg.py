"""Pictures as inline SVG: curves, columns, stacked bars and heat maps, coloured by style sheet."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from markupsafe import Markup

from fedsieve.drawing.units import number

WIDTH, HEIGHT = 420, 270
LEFT, RIGHT, TOP, BOTTOM = 48, 20, 12, 42
COLOURS, LEVELS = 8, 9
SEPARATE = 70  # points that can be told apart in a picture; of more, only the chosen one shows
DOT = Markup(
    '<circle class="pt" cx="{0}" cy="{1}" r="2.6" data-x="{2.x!r}" data-y="{2.y!r}">'
    "<title>{2.tip}</title></circle>"
)


class Point(NamedTuple):
    """One point of a curve, with the words shown at it."""

    x: float
    y: float
    tip: str


class Series(NamedTuple):
    """A curve; `run` decides its colour and dash, `spread` the half width of a band around it."""

    run: int
    points: list[Point]
    spread: Sequence[float] = ()


class Axis(NamedTuple):
    """What an axis measures, how its ticks are written, and values it has to reach."""

    label: str
    text: Callable[[float], str] = number
    is_log: bool = False
    is_whole: bool = False
    includes: tuple[float, ...] = ()


class Bar(NamedTuple):
    """One line of stacked bars: named parts in order, and a mark to compare with."""

    label: str
    parts: list[tuple[str, float]]
    mark: float


class Scale(NamedTuple):
    """Values to places along an axis."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return self.start + (self.end - self.start) * (value - low) / (high - low)


def tag(name: str, *children: str, **attributes: object) -> Markup:
    """An element that escapes what it holds; `class_` and `data_x` become `class` and `data-x`."""
    written = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value)
        for key, value in attributes.items()
    )
    inside = Markup("").join(children)
    shape = Markup("<{0}{1}>{2}</{0}>") if inside else Markup("<{0}{1}/>")
    return shape.format(name, written, inside)


def exact(value: Any) -> str:
    """A value in full, as JSON, for a data attribute."""
    return msgspec.json.encode(value).decode()


def curves(
    series: Sequence[Series], x: Axis, y: Axis, title: str, size: tuple[int, int] | None = None
) -> Markup:
    """Curves of several runs with ticks, a grid and a point for every value.

    The picture fills what it is put into; `size` is for one inside another picture.
    """
    points = [p for s in series for p in s.points]
    across = _scale([p.x for p in points], LEFT, WIDTH - RIGHT, is_log=x.is_log)
    bands = [height for s in series for _, height in _band(s)]
    heights = [*(p.y for p in points), *bands, *y.includes]
    up = _scale(heights, HEIGHT - BOTTOM, TOP, is_log=y.is_log, is_wide=True)
    lines = [_curve(s, across, up) for s in series]
    kind = "curves" if len(points) <= SEPARATE else "curves dense"
    fixed = {} if size is None else {"width": size[0], "height": size[1]}
    return _picture(title, _axes(across, up, x, y), *lines, kind=kind, tall=HEIGHT, **fixed)


def columns(edges: Sequence[float], counts: Sequence[int], x: Axis, run: int, title: str) -> Markup:
    """A histogram: one column between every two edges."""
    across = Scale(edges[0], edges[-1], LEFT, WIDTH - RIGHT)
    up = Scale(0, max(*counts, 1), 200 - BOTTOM, TOP)
    bars = []
    for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
        tip = f"{x.text(low)} to {x.text(high)}: {count} client{'s' * (count != 1)}"
        top = up(count)
        bar = tag(
            "rect", tag("title", tip), class_="column pt", x=_at(across(low) + 1), y=_at(top),
            width=_at(across(high) - across(low) - 2), height=_at(up(0) - top), data_y=count,
        )  # fmt: skip
        bars.append(bar if count else "")
    group = tag("g", *bars, class_=run_class(run), data_run=run)
    axes = _axes(across, up, x, Axis("clients", is_whole=True))
    return _picture(title, axes, group, kind="columns", tall=200)


def stacked(bars: Sequence[Bar], text: Callable[[float], str], title: str) -> Markup:
    """Horizontal bars of named parts on one scale; a thin mark stands where `mark` is."""
    longest = max(max(sum(v for _, v in bar.parts), bar.mark) for bar in bars) or 1
    across = Scale(0, longest, 8, WIDTH - 8)
    drawn: list[str] = []
    for line, bar in enumerate(bars):
        top, passed = 18 + 42 * line, 0.0
        whole = sum(v for _, v in bar.parts)
        drawn.append(tag("text", f"{bar.label}: {text(whole)}", x=8, y=top))
        for name, value in bar.parts:
            width = across(passed + value) - across(passed)
            tip = f"{bar.label}, {name}: {text(value)} ({value / (whole or 1):.1%})"
            drawn.append(
                tag("rect", tag("title", tip), class_=f"part {name} pt", x=_at(across(passed)),
                    y=top + 6, width=_at(width), height=16)
            )  # fmt: skip
            passed += value
        mark = f"M{_at(across(bar.mark))} {top + 3}v22"
        tip = f"{bar.label}, by the papers' formula: {text(bar.mark)}"
        drawn.append(tag("path", tag("title", tip), class_="mark pt", d=mark) if bar.mark else "")
    return _picture(title, *drawn, kind="stacked", tall=8 + 42 * len(bars))


def heat_map(
    rows: Sequence[str],
    names: Sequence[str],
    values: Sequence[Sequence[float]],
    title: str,
    words: tuple[str, str, str],
    digits: int = 3,
    low: float = 0.0,
) -> Markup:
    """A grid of cells, darker where the value is larger, with a key below.

    Args:
        rows: names of the lines.
        names: names of the columns.
        values: a list per line.
        title: what is shown.
        words: how a row, a column and a value are called, for the words at a cell.
        digits: decimals of a value in words.
        low: the value of the lightest shade.
    """
    left = 14 + min(max(len(r) for r in rows), 18) * 6.4
    width = WIDTH - left - RIGHT
    wide = min(width / len(names), 36)
    tall = wide if list(rows) == list(names) else min(max(220 / len(rows), 4), 22)
    high = max((v for line in values for v in line), default=1.0)
    high = high if high > low else low + 1
    paths: list[list[str]] = [[] for _ in range(LEVELS)]
    for i, line in enumerate(values):
        for j, value in enumerate(line):
            level = min(int((value - low) / (high - low) * LEVELS), LEVELS - 1)
            if value > low or low > 0:
                place = f"M{_at(left + j * wide)} {_at(TOP + i * tall)}"
                paths[max(level, 0)].append(f"{place}h{_at(wide)}v{_at(tall)}h{_at(-wide)}z")
    bottom = TOP + tall * len(rows)
    frame = (_at(left), TOP, _at(wide * len(names)), _at(tall * len(rows)))
    x, y, w, h = frame
    cells = [
        tag("rect", class_="ground", x=x, y=y, width=w, height=h),
        *(tag("path", class_=f"h{i}", d="".join(p)) for i, p in enumerate(paths) if p),
        tag("rect", class_="cursor", width=_at(wide), height=_at(tall), visibility="hidden"),
    ]
    labels = [
        tag("text", _shortened(rows[i]), x=_at(left - 6), y=_at(TOP + (i + 0.5) * tall + 4),
            class_="end")
        for i in _every(len(rows), tall, 13)
    ] + [
        tag("text", names[j], x=_at(left + (j + 0.5) * wide), y=_at(bottom + 15), class_="middle")
        for j in _every(len(names), wide, 6.8 * max(len(n) for n in names) + 6)
    ]  # fmt: skip
    foot = bottom + 34
    key = [
        tag("text", f"{words[0]} ↓ {words[1]} →".removeprefix(" ↓ "), x=_at(left), y=_at(foot + 4)),
        tag("text", f"{low:.{digits}f}", x=WIDTH - 182, y=_at(foot + 4), class_="end"),
        *(
            tag("rect", class_=f"h{i}", x=WIDTH - 176 + 12 * i, y=_at(foot - 5), width=12, height=9)
            for i in range(LEVELS)
        ),
        tag("text", f"{high:.{digits}f}", x=WIDTH - 62, y=_at(foot + 4)),
    ]
    data = {
        "data_values": exact(values),
        "data_rows": exact(list(rows)),
        "data_columns": exact(list(names)),
        "data_words": exact(words),
        "data_digits": digits,
        "data_frame": exact([float(part) for part in frame]),
    }
    return _picture(title, *cells, *labels, *key, kind="heat", tall=round(foot + 14), **data)


def meter(value: float, high: float, run: int) -> Markup:
    """A small bar inside a table cell."""
    filled = tag("rect", width=_at(100 * value / (high or 1)), height=6, class_="filled")
    ground = tag("rect", width=100, height=6, class_="ground")
    return tag("svg", ground, filled, class_=f"meter {run_class(run)}", viewBox="0 0 100 6",
               preserveAspectRatio="none", aria_hidden="true")  # fmt: skip


def run_class(run: int) -> str:
    """Class names that give a run its colour and its dash."""
    return f"run c{run % COLOURS} d{(run + run // COLOURS) % COLOURS}"


def ticks(low: float, high: float, *, is_whole: bool = False) -> list[float]:
    """About five round numbers from low to high."""
    raw = max((high - low) / 6, 1) if is_whole else (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    steps = (1, 2, 5, 10) if is_whole else (1, 2, 2.5, 5, 10)
    step = power * next(m for m in steps if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, with twos and fives between them where there is room."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1,) if math.log10(high / low) > 3 else (1, 2, 5)
    values = [m * 10.0**p for p in powers for m in steps if low <= m * 10.0**p <= high]
    return values[:: max(1, math.ceil(len(values) / 6))]


def _scale(
    values: list[float], start: float, end: float, *, is_log: bool, is_wide: bool = False
) -> Scale:
    low, high = min(values), max(values)
    if is_log:
        room = 1.15 if high > low else 2.0
        return Scale(low / room, high * room, start, end, is_log=True)
    room = (high - low) * (0.06 if is_wide else 0.02) or abs(high) * 0.1 or 1.0
    return Scale(low - room, high + room, start, end)


def _curve(series: Series, across: Scale, up: Scale) -> Markup:
    places = [(across(p.x), up(p.y), p) for p in series.points]
    path = "M" + "L".join(f"{_at(x)} {_at(y)}" for x, y, _ in places)
    dots = Markup("").join(DOT.format(_at(x), _at(y), p) for x, y, p in places)
    outline = [f"{_at(across(x))} {_at(up(y))}" for x, y in _band(series)]
    band = tag("path", class_="band", d=f"M{'L'.join(outline)}z") if outline else ""
    line = tag("path", class_="line", d=path)
    return tag("g", band, line, dots, class_=run_class(series.run), data_run=series.run)


def _band(series: Series) -> list[tuple[float, float]]:
    """The outline of the band around a curve: along its upper edge, and back along the lower."""
    if not any(series.spread):
        return []
    edges = list(zip(series.points, series.spread, strict=True))
    upper = [(p.x, p.y + s) for p, s in edges]
    return upper + [(p.x, p.y - s) for p, s in reversed(edges)]


def _axes(across: Scale, up: Scale, x: Axis, y: Axis) -> Markup:
    marks = []
    for value in _ticks(up, y):
        at = _at(up(value))
        marks.append(tag("path", class_="grid", d=f"M{LEFT} {at}H{WIDTH - RIGHT}"))
        marks.append(tag("text", y.text(value), x=LEFT - 6, y=_at(up(value) + 4), class_="end"))
    bottom = up.start
    for value in _ticks(across, x):
        at = _at(across(value))
        marks.append(tag("path", class_="tick", d=f"M{at} {bottom}v4"))
        marks.append(tag("text", x.text(value), x=at, y=bottom + 17, class_="middle"))
    marks.append(tag("path", class_="axis", d=f"M{LEFT} {bottom}H{WIDTH - RIGHT}"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    marks.append(tag("text", x.label, x=middle, y=bottom + 35, class_="middle name"))
    return Markup("").join(marks)


def _ticks(scale: Scale, axis: Axis) -> list[float]:
    if scale.is_log:
        return log_ticks(scale.low, scale.high)
    return ticks(scale.low, scale.high, is_whole=axis.is_whole)


def _picture(
    title: str, *content: str, kind: str, tall: int = HEIGHT, **attributes: object
) -> Markup:
    return tag("svg", *content, class_=f"picture {kind}", viewBox=f"0 0 {WIDTH} {tall}",
               role="img", aria_label=title, tabindex=0, **attributes)  # fmt: skip


def _every(count: int, room: float, needed: float) -> range:
    return range(0, count, max(1, math.ceil(needed / room)))


def _shortened(name: str) -> str:
    return name if len(name) <= 18 else f"{name[:7]}…{name[-10:]}"


def _at(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
