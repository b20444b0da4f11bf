"""Curves of a line chart: gaps, thinning, labels at their ends, marks across them."""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby

from perennial.reports.axes import Axis, limited
from perennial.reports.drawing import WIDTH, fill, stroke, text_at, width_of
from perennial.reports.text import shortened

Point = tuple[float, float]

NAME_LIMIT = 20
LINE_HEIGHT = 15.0
_FEW_POINTS = 30
"""Up to here, points are marked, so that a line is not taken for more than it rests on."""
_MEAN_WINDOW = 4.0
"""Pixels over which the mean of a dense curve is taken."""


def curve(points: Sequence[Point], x_axis: Axis, y_axis: Axis, index: int) -> str:
    """One series: missing values leave gaps, lone points are dots, dense runs show their range."""
    runs = _runs(points, x_axis, y_axis)
    lines: list[str] = []
    ranges: list[str] = []
    dots: list[str] = []
    for run in runs:
        columns = _columns(run, 1.0)
        is_dense = len(run) > 2 * len(columns) and len(columns) > 2 * _MEAN_WINDOW
        (ranges if is_dense else lines).append(_path(_extremes(columns)))
        if is_dense:
            lines.append(_path(_means(_columns(run, _MEAN_WINDOW))))
        if len(run) == 1:
            dots.append(_path(run))
    if sum(map(len, runs)) <= _FEW_POINTS:
        dots = [_path([point]) for run in runs for point in run]
    layers = {"l r": ranges, "l": lines, "l o": dict.fromkeys(dots)}
    return "".join(
        f'<path class="{classes} {stroke(index)}" d="{"".join(paths)}"/>'
        for classes, paths in layers.items()
        if paths
    )


def end_of(points: Sequence[Point], x_axis: Axis, y_axis: Axis) -> float | None:
    """The height at which a series ends; None without any point."""
    runs = _runs(points, x_axis, y_axis)
    return runs[-1][-1][1] if runs else None


def end_names(ends: Mapping[str, float | None], x_axis: Axis, y_axis: Axis) -> str:
    """The series' names beside the ends of their lines, moved apart where they would overlap."""
    places = [(y_axis.start if y is None else y, index) for index, y in enumerate(ends.values())]
    order = sorted(places)
    heights = _spread([y for y, _ in order], y_axis.end, y_axis.start)
    names = list(ends)
    parts = []
    x = x_axis.end
    for (end, index), height in zip(order, heights, strict=True):
        if ends[names[index]] is not None:
            line = f"M{x + 2:.1f} {end:.1f}L{x + 8:.1f} {height:.1f}"
            parts.append(f'<path class="l r {stroke(index)}" d="{line}"/>')
        name = end_name(names[index], ends[names[index]])
        parts.append(text_at(x + 11, height + 4, name, classes=fill(index), limit=NAME_LIMIT))
    return "".join(parts)


def end_name(name: str, end: float | None) -> str:
    """A series' name, with a note when it has no values."""
    return name if end is not None else f"{shortened(name, 9)} (no values)"


def flags(marks: Mapping[str, float], axis: Axis) -> tuple[dict[str, tuple[float, int]], float]:
    """The place of each mark's name, as (left end, row), and the height that they need.

    A name stands to the right of its line and below every name that it would run into; so no line
    ever crosses a name.
    """
    ends: list[tuple[float, int]] = []
    places: dict[str, tuple[float, int]] = {}
    for name, value in sorted(marks.items(), key=lambda mark: mark[1]):
        width = width_of(shortened(name, NAME_LIMIT))
        x = min(axis.at(value), WIDTH - width - 4)
        row = 1 + max((row for end, row in ends if end + 6 > x), default=-1)
        places[name] = (x, row)
        ends.append((x + width, row))
    rows = 1 + max((row for _, row in ends), default=-1)
    return places, rows * LINE_HEIGHT


def mark_lines(marks: Mapping[str, float], x_axis: Axis, y_axis: Axis) -> str:
    """Vertical lines through the plot, each up to its name."""
    places, _ = flags(marks, x_axis)
    parts = []
    for name, (left, row) in places.items():
        x, y = x_axis.at(marks[name]), 2 + row * LINE_HEIGHT
        parts.append(f'<path class="k" d="M{x:.1f} {y:.1f}V{y_axis.start:.1f}"/>')
        parts.append(text_at(left + 4, y + 9, name, classes="h", limit=NAME_LIMIT))
    return "".join(parts)


def _runs(points: Sequence[Point], x_axis: Axis, y_axis: Axis) -> list[list[Point]]:
    """The pixels of points without interruption."""
    pixels = [(x_axis.at(limited(x)), y_axis.at(limited(y))) for x, y in points if math.isfinite(x)]
    grouped = groupby(pixels, key=lambda pixel: math.isnan(pixel[1]))
    return [list(run) for is_gap, run in grouped if not is_gap]


def _columns(run: Sequence[Point], width: float) -> list[list[Point]]:
    return [list(part) for _, part in groupby(run, key=lambda pixel: pixel[0] // width)]


def _extremes(columns: Sequence[Sequence[Point]]) -> list[Point]:
    """First, lowest, highest and last point of each pixel column: the same picture, less text."""
    kept: list[Point] = []
    for column in columns:
        heights = [y for _, y in column]
        wanted = {0, heights.index(min(heights)), heights.index(max(heights)), len(column) - 1}
        kept.extend(column[i] for i in sorted(wanted))
    return kept


def _means(columns: Sequence[Sequence[Point]]) -> list[Point]:
    return [
        (sum(x for x, _ in column) / len(column), sum(y for _, y in column) / len(column))
        for column in columns
    ]


def _path(points: Sequence[Point]) -> str:
    first, *rest = [f"{x:.1f} {y:.1f}" for x, y in points]
    # A line of no length has round ends, so that a lone point is a dot.
    return f"M{first}" + (f"L{' '.join(rest)}" if rest else "h0")


def _spread(heights: Sequence[float], top: float, bottom: float) -> list[float]:
    """Sorted heights moved apart as far as needed, inside of the plot."""
    spread: list[float] = []
    for height in heights:
        spread.append(max(height, spread[-1] + LINE_HEIGHT) if spread else max(height, top))
    limit = bottom
    for index in range(len(spread) - 1, -1, -1):
        spread[index] = min(spread[index], limit)
        limit = spread[index] - LINE_HEIGHT
    return spread
