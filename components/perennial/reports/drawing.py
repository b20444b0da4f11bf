"""The parts that charts are drawn from: canvas, frame, ticks, labels, reference lines."""

import unicodedata
from collections.abc import Sequence
from typing import TypeVar

from perennial.reports.axes import Axis
from perennial.reports.text import escaped, shortened

WIDTH = 560.0
"""Width of the canvas; about that of a figure on a page, so that text keeps its size."""
AXIS_SPACE = 42.0
"""Height of tick labels and title below a horizontal axis."""
LABEL_LIMIT = 28
_COLORS = 6

AnyAxis = TypeVar("AnyAxis", bound=Axis)


def svg(height: float, about: str, parts: Sequence[str]) -> str:
    """Return the whole drawing; screen readers read `about`."""
    label = escaped(about)
    return (
        f'<svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" aria-label="{label}">'
        f"<title>{label}</title>{''.join(parts)}</svg>"
    )


def text_at(x: float, y: float, text: str, *, classes: str = "", limit: int = 60) -> str:
    """A text, shortened to a limit, in full when pointed at."""
    cut = shortened(text, limit)
    title = f"<title>{escaped(text)}</title>" if cut != text else ""
    name = f' class="{classes}"' if classes else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{name}>{escaped(cut)}{title}</text>'


def width_of(text: str) -> float:
    """About how many pixels a text takes: rather too many, as fonts differ."""
    return sum(map(_character_width, text))


def stroke(index: int) -> str:
    """The classes of a series' line; from the seventh on, colors repeat with dashes."""
    return f"s{index % _COLORS + 1}" + (" d" if index >= _COLORS else "")


def fill(index: int) -> str:
    """The class of a series' area or text."""
    return f"f{index % _COLORS + 1}"


def fitted(kind: type[AnyAxis], limits: tuple[float, float], start: float, end: float) -> AnyAxis:
    """A horizontal axis with as many ticks as its labels leave room for."""
    axes = (kind(*limits, start, end, count) for count in (7, 5, 4, 3, 2, 1))
    room = end - start
    return next(
        (axis for axis in axes if sum(width_of(label) + 14 for label in axis.tick_labels) < room),
        kind(*limits, start, end, 1),
    )


def frame(x_axis: Axis, y_axis: Axis, x_label: str, y_label: str) -> str:
    """Both axes of a plot with horizontal grid lines."""
    parts = [horizontal_axis(x_axis, y_axis.start, x_label)]
    for tick, label in zip(y_axis.ticks, y_axis.tick_labels, strict=True):
        y = y_axis.at(tick)
        parts.append(f'<path class="g" d="M{x_axis.start:.1f} {y:.1f}H{x_axis.end:.1f}"/>')
        parts.append(text_at(x_axis.start - 6, y + 4, label, classes="e q"))
    middle = (y_axis.start + y_axis.end) / 2
    parts.append(
        f'<text class="m q" transform="translate(11 {middle:.0f}) rotate(-90)">'
        f"{escaped(y_axis.title(shortened(y_label, LABEL_LIMIT)))}</text>"
    )
    return "".join(parts)


def left_of(y_axis: Axis) -> float:
    """Return the left end of a plot, beside the labels of its vertical axis."""
    return 30 + max(map(width_of, y_axis.tick_labels), default=0.0)


def horizontal_axis(axis: Axis, bottom: float, label: str) -> str:
    """A line with ticks, their labels and a title."""
    marks = "".join(f"M{axis.at(tick):.1f} {bottom:.1f}v4" for tick in axis.ticks)
    parts = [f'<path class="a" d="M{axis.start:.1f} {bottom:.1f}H{axis.end:.1f}{marks}"/>']
    for tick, written in zip(axis.ticks, axis.tick_labels, strict=True):
        half = width_of(written) / 2
        x = min(max(axis.at(tick), half), WIDTH - half)
        parts.append(text_at(x, bottom + 17, written, classes="m q"))
    title = axis.title(shortened(label, 60))
    half = min(width_of(title), WIDTH) / 2
    middle = min(max((axis.start + axis.end) / 2, half), WIDTH - half)
    parts.append(text_at(middle, bottom + 35, title, classes="m q", limit=80))
    return "".join(parts)


def vertical_grid(axis: Axis, top: float, bottom: float, label: str) -> str:
    """A horizontal axis with a line through the plot at each tick."""
    lines = "".join(f"M{axis.at(tick):.1f} {top:.0f}V{bottom:.0f}" for tick in axis.ticks)
    grid = f'<path class="g" d="{lines}"/>' if lines else ""
    return grid + horizontal_axis(axis, bottom, label)


def reference_line(axis: Axis, value: float, top: float, bottom: float, label: str) -> str:
    """A dashed vertical line with its name above the plot."""
    x = axis.at(value)
    half = width_of(label) / 2
    named = text_at(min(max(x, half), WIDTH - half), top - 8, label, classes="m h")
    return f'<path class="k" d="M{x:.1f} {top - 4:.1f}V{bottom:.1f}"/>{named}'


def nothing(x: float, y: float) -> str:
    """Text of a chart without values."""
    return text_at(x, y, "no values", classes="m q")


def _character_width(character: str) -> float:
    # Of DejaVu Sans at 12 pixels: the widest font in common use.
    if character in "fijlrtI.,:;'|!()[] ":
        return 4.9
    if character in "mwMW@%&…" or unicodedata.east_asian_width(character) in "WF":
        return 12.0
    return 8.7 if character.isupper() else 7.6
