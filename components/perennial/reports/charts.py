"""Charts as inline SVG, drawn by hand: small, without scripts, light and dark with their page."""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby

from perennial.reports.drawing import (
    ASCENT,
    AXIS_SPACE,
    LINE_HEIGHT,
    MINUS,
    WIDTH,
    Axis,
    DateAxis,
    fill,
    finite,
    fitted,
    frame,
    horizontal_axis,
    left_of,
    limited,
    nothing,
    padded_range,
    stroke,
    svg,
    text_at,
    vertical_grid,
    width_of,
    within,
)
from perennial.reports.text import escaped, number, shortened

_MAX_ROWS = 40
"""Rows of a bar or interval chart: more cannot be compared by eye."""
_ROW_HEIGHT = 36.0
"""A line of text with a bar or interval below: beside each other, both would be too narrow."""
_GRAPHIC = 24.0
"""Middle of the bar or interval, below the top of its row."""
_BAND_HEIGHT = 22.0
_PLOT_HEIGHT = 200.0

Point = tuple[float, float]
Interval = tuple[float, float, float]
_NAME_LIMIT = 20
_SIDE = 10.0
"""Left of and right of a plot whose rows are named above their bars."""
_FEW_POINTS = 30
"""Up to here, points are marked, so that a line is not taken for more than it rests on."""
_MEAN_WINDOW = 4.0
"""Pixels over which the mean of a dense curve is taken."""
_HOVERED = 16
"""Points of a line that show their values when pointed at; more would outweigh the page."""


def line_chart(
    series: Mapping[str, Sequence[Point]],
    *,
    x_label: str,
    y_label: str,
    marks: Mapping[str, float] | None = None,
    x_dates: bool = False,
    are_joined: bool = True,
) -> str:
    """Draw lines over a common x axis, named at their ends; missing values leave gaps.

    Where many values share a pixel, a pale band shows their range and a line their mean.

    Args:
        series: Points (x, y) by name, in drawing order, x ascending.
        x_label: What x is, with its unit.
        y_label: What y is, with its unit.
        marks: Vertical lines by name.
        x_dates: Whether x counts seconds since 1970 (UTC) and ticks are dates.
        are_joined: Whether lines join the points; else they are dots.
    """
    known = {name: x for name, x in (marks or {}).items() if math.isfinite(x)}
    points = [point for line in series.values() for point in line if math.isfinite(point[0])]
    limits = padded_range([*(x for x, _ in points), *known.values()])
    y_limits = padded_range([y for _, y in points], 0.04)
    # On axes of unit length first: the names at the lines' ends decide how wide the plot can be.
    flat = Axis(*y_limits, 0, 1)
    unplaced = Axis(*limits, 0, 1)
    ends = {name: _end_of(line, unplaced, flat) for name, line in series.items()}
    names = [_end_name(name, end) for name, end in ends.items()] if len(series) > 1 else []
    right = WIDTH - 16 - max((width_of(shortened(name, _NAME_LIMIT)) for name in names), default=0)
    kind = DateAxis if x_dates and DateAxis.can_show(*limits) else Axis
    x_axis = fitted(kind, limits, left_of(flat), right)
    top = 10 + _flags(known, x_axis)[1]
    bottom = top + max(_PLOT_HEIGHT, LINE_HEIGHT * len(names))
    y_axis = Axis(*y_limits, bottom, top)
    drawn = [frame(x_axis, y_axis, x_label, y_label), _mark_lines(known, x_axis, bottom)]
    drawn += [
        _curve(line, x_axis, y_axis, index, are_joined=are_joined)
        for index, line in enumerate(series.values())
    ]
    drawn += [_hovered(name, line, x_axis, y_axis) for name, line in series.items()]
    if all(end is None for end in ends.values()):
        drawn.append(nothing((x_axis.start + right) / 2, (top + bottom) / 2))
    if names:
        ends = {name: _end_of(line, x_axis, y_axis) for name, line in series.items()}
        drawn.append(_end_names(ends, x_axis, y_axis))
    kind_of_chart = "Line" if are_joined else "Scatter"
    about = f"{kind_of_chart} chart of {y_label} by {x_label}: {', '.join(series)}"
    return svg(bottom + AXIS_SPACE, about, drawn)


def bar_chart(values: Mapping[str, float], *, x_label: str, threshold: float | None = None) -> str:
    """Draw horizontal bars from zero, each with its value; bars past the threshold are darker."""
    rows = dict(list(values.items())[:_MAX_ROWS])
    lines = _reference_lines({}, threshold)
    known = finite([*rows.values(), *lines.values()])
    limits = padded_range([0.0, *known]) if any(known) else (0.0, 1.0)
    axis = fitted(Axis, limits, _SIDE, WIDTH - _SIDE)
    top = 10 + _flags(lines, axis)[1]
    bottom = top + _ROW_HEIGHT * max(1, len(rows))
    drawn = [vertical_grid(axis, top, bottom, x_label)]
    for index, (name, value) in enumerate(rows.items()):
        drawn.append(_bar(name, value, axis, top + _ROW_HEIGHT * index, threshold))
    drawn.append(f'<path class="a" d="M{axis.at(0):.1f} {top:.0f}V{bottom:.0f}"/>')
    drawn.append(_mark_lines(lines, axis, bottom))
    # Last, so that no line crosses a text.
    for index, (name, value) in enumerate(rows.items()):
        written = "not available" if math.isnan(value) else _signed(value)
        drawn.append(_row_text(name, written, top + _ROW_HEIGHT * index))
    return _rows_svg(f"Bar chart of {x_label}", drawn, bottom, values, axis)


def interval_chart(
    intervals: Mapping[str, Interval],
    *,
    x_label: str,
    reference: float | None = 0.0,
    threshold: float | None = None,
) -> str:
    """Estimates with their intervals (low, estimate, high), one row each, the first 40.

    Open ends reach the edge of the plot; `reference` is a vertical line, such as no difference, and
    `threshold` the one that decides.
    """
    rows = dict(list(intervals.items())[:_MAX_ROWS])
    lines = _reference_lines(
        {} if reference is None else {_signed(reference): reference}, threshold
    )
    known = [*(value for row in rows.values() for value in row), *lines.values()]
    axis = fitted(Axis, padded_range(known, 0.05), _SIDE, WIDTH - _SIDE)
    top = 10 + _flags(lines, axis)[1]
    bottom = top + _ROW_HEIGHT * max(1, len(rows))
    drawn = [vertical_grid(axis, top, bottom, x_label), _mark_lines(lines, axis, bottom)]
    for index, (name, row) in enumerate(rows.items()):
        y, written = top + _ROW_HEIGHT * index, _interval_text(row)
        drawn.append(_interval(f"{name} {written}".strip(), row, axis, y + _GRAPHIC))
        drawn.append(_row_text(name, written, y))
    return _rows_svg(f"Intervals of {x_label}", drawn, bottom, intervals, axis)


def _reference_lines(lines: Mapping[str, float], threshold: float | None) -> dict[str, float]:
    """Return the vertical lines of a chart by their names; a threshold covers a line below it."""
    if threshold is None or not math.isfinite(threshold):
        return {name: value for name, value in lines.items() if math.isfinite(value)}
    others = {name: x for name, x in lines.items() if math.isfinite(x) and x != threshold}
    return {**others, f"threshold {_signed(threshold)}": threshold}


def gauge_chart(
    values: Mapping[str, float], *, x_label: str, band: tuple[float, float] | None = None
) -> str:
    """Draw values marked on one scale from zero, so that near and far are seen at once.

    NaN and infinities are named below the scale; `band` is the expected range.
    """
    known = {f"{name} {_signed(v)}": v for name, v in values.items() if math.isfinite(v)}
    limits = padded_range([0.0, *finite([*known.values(), *(band or ())])])
    # Room for the name of a mark at the very end, so that it crosses no other mark.
    room = 20 + max(map(width_of, known), default=0.0)
    axis = fitted(Axis, limits, 16, WIDTH - room)
    places, space = _flags(known, axis)
    top = 10 + space
    bottom = top + _BAND_HEIGHT
    drawn = [horizontal_axis(axis, bottom, x_label)]
    if band is not None and all(map(math.isfinite, band)):
        low, high = map(axis.at, band)
        size = f'width="{max(high - low, 1):.1f}" height="{_BAND_HEIGHT:.0f}"'
        drawn.append(f'<rect class="f3 v" x="{low:.1f}" y="{top:.1f}" {size}/>')
    for index, (name, value) in enumerate(known.items()):
        (left, row), x = places[name], axis.at(value)
        y, middle = ASCENT + 1 + row * LINE_HEIGHT, (top + bottom) / 2
        # Marks at the same place are rings around each other.
        dot = f'cx="{x:.1f}" cy="{middle:.1f}" r="{max(9 - 3 * index, 3)}"'
        line = f"M{x:.1f} {y - 9:.1f}V{middle:.1f}"
        drawn.append(f'<path class="l {stroke(index)}" d="{line}"/>')
        pointed = f"<title>{escaped(name)}</title>"
        drawn.append(f'<circle class="{fill(index)}" {dot}>{pointed}</circle>')
        drawn.append(text_at(left + 6, y, name, classes=f"h {fill(index)}", limit=_NAME_LIMIT))
    unknown = [name for name, value in values.items() if not math.isfinite(value)]
    height = bottom + AXIS_SPACE + (18 if unknown else 0)
    if unknown:
        note = f"not finite: {', '.join(unknown)}"
        drawn.append(text_at(16, height - 6, note, classes="q"))
    return svg(height, f"Scale of {x_label}: {', '.join(values)}", drawn)


def _rows_svg(
    about: str, drawn: list[str], bottom: float, rows: Mapping[str, object], axis: Axis
) -> str:
    height = bottom + AXIS_SPACE
    left = len(rows) - _MAX_ROWS
    if left > 0:
        height += 18
        drawn.append(text_at(0, height - 6, f"{left:,} more rows are not drawn", classes="q"))
    if not rows:
        drawn.append(nothing((axis.start + axis.end) / 2, bottom - 6))
    return svg(height, about, drawn)


def _row_text(name: str, written: str, y: float) -> str:
    """Draw a row's name at the left and its value at the right, above its bar or interval."""
    shown = within(name, WIDTH - width_of(written) - 12)
    pointed = f"<title>{escaped(name)}</title>" if shown != name else ""
    return (
        f'<text x="0" y="{y + ASCENT:.1f}" class="h">{escaped(shown)}{pointed}</text>'
        f"{text_at(WIDTH, y + ASCENT, written, classes='e q h')}"
    )


def _bar(name: str, value: float, axis: Axis, y: float, threshold: float | None) -> str:
    if math.isnan(value):
        return ""
    start, end = sorted((axis.at(0), axis.at(value)))
    is_pale = threshold is not None and value <= threshold
    return (
        f'<rect class="f1{" p" if is_pale else ""}" x="{start:.1f}" y="{y + _GRAPHIC - 6:.1f}" '
        f'width="{max(end - start, 1):.1f}" height="12">'
        f"<title>{escaped(f'{name} {_signed(value)}'.strip())}</title></rect>"
    )


def _interval(about: str, row: Interval, axis: Axis, y: float) -> str:
    low, estimate, high = row
    parts, pointed = [], f"<title>{escaped(about)}</title>"
    if not (math.isnan(low) or math.isnan(high)):
        line = f"M{axis.at(low):.1f} {y:.1f}H{axis.at(high):.1f}"
        parts.append(f'<path class="l w s1 r" d="{line}">{pointed}</path>')
    if math.isfinite(estimate):
        dot = f'cx="{axis.at(estimate):.1f}" cy="{y:.1f}" r="4.5"'
        parts.append(f'<circle class="f1" {dot}>{pointed}</circle>')
    return "".join(parts)


def _interval_text(row: Interval) -> str:
    low, estimate, high = (_signed(value, 3) for value in row)
    if all(math.isnan(value) for value in row):
        return "not available"
    return f"{estimate} [{low}, {high}]"


def _signed(value: float, digits: int = 4) -> str:
    return number(value, digits).replace("-", MINUS)


def _curve(
    points: Sequence[Point], x_axis: Axis, y_axis: Axis, index: int, *, are_joined: bool
) -> str:
    """Draw a series: missing values are gaps, lone points dots, dense runs show their range."""
    runs = _runs(points, x_axis, y_axis)
    if not are_joined:
        runs = [[point] for run in runs for point in run]
    lines: list[str] = []
    ranges: list[str] = []
    dots: list[str] = []
    for run in runs:
        columns = _columns(run, 1.0)
        # Of more than two points a pixel, a line would be a filled area.
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


def _hovered(name: str, points: Sequence[Point], x_axis: Axis, y_axis: Axis) -> str:
    """Draw invisible circles that show the values of evenly chosen points when pointed at."""
    known = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    stride = -(-len(known) // _HOVERED) or 1
    # From the end: the last value is the one that people look for.
    places = ((x_axis.at(limited(x)), y_axis.at(limited(y)), x, y) for x, y in known[::-stride])
    return "".join(
        f'<circle class="u" cx="{left:.1f}" cy="{top:.1f}" r="7">'
        f"<title>{escaped(name)}: {_signed(y)} at {escaped(x_axis.shown(x))}</title></circle>"
        for left, top, x, y in places
    )


def _end_of(points: Sequence[Point], x_axis: Axis, y_axis: Axis) -> float | None:
    """Return the height at which a series ends; None without any point."""
    runs = _runs(points, x_axis, y_axis)
    return runs[-1][-1][1] if runs else None


def _end_names(ends: Mapping[str, float | None], x_axis: Axis, y_axis: Axis) -> str:
    """Draw the series' names beside the ends of their lines, moved apart if they would overlap."""
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
        name = _end_name(names[index], ends[names[index]])
        parts.append(text_at(x + 11, height + 4, name, classes=fill(index), limit=_NAME_LIMIT))
    return "".join(parts)


def _end_name(name: str, end: float | None) -> str:
    """Return a series' name, with a note when it has no values."""
    return name if end is not None else f"{shortened(name, 9)} (no values)"


def _flags(marks: Mapping[str, float], axis: Axis) -> tuple[dict[str, tuple[float, int]], float]:
    """Return the place of each mark's name, as (left end, row), and the height that they need.

    A name stands to the right of its line and below every name that it would run into; so no line
    ever crosses a name.
    """
    ends: list[tuple[float, int]] = []
    places: dict[str, tuple[float, int]] = {}
    for name, value in sorted(marks.items(), key=lambda mark: mark[1]):
        width = width_of(shortened(name, _NAME_LIMIT))
        x = min(axis.at(value), WIDTH - width - 8)
        row = 1 + max((row for end, row in ends if end + 6 > x), default=-1)
        places[name] = (x, row)
        ends.append((x + width, row))
    rows = 1 + max((row for _, row in ends), default=-1)
    return places, rows * LINE_HEIGHT


def _mark_lines(marks: Mapping[str, float], x_axis: Axis, bottom: float) -> str:
    """Draw vertical lines through the plot, each up to its name."""
    places, _ = _flags(marks, x_axis)
    parts = []
    for name, (left, row) in places.items():
        x, y = x_axis.at(marks[name]), 2 + row * LINE_HEIGHT
        parts.append(f'<path class="k" d="M{x:.1f} {y:.1f}V{bottom:.1f}"/>')
        parts.append(text_at(left + 4, y + ASCENT, name, classes="h", limit=_NAME_LIMIT))
    return "".join(parts)


def _runs(points: Sequence[Point], x_axis: Axis, y_axis: Axis) -> list[list[Point]]:
    """Return the pixels of points without interruption."""
    pixels = [(x_axis.at(limited(x)), y_axis.at(limited(y))) for x, y in points if math.isfinite(x)]
    grouped = groupby(pixels, key=lambda pixel: math.isnan(pixel[1]))
    return [list(run) for is_gap, run in grouped if not is_gap]


def _columns(run: Sequence[Point], width: float) -> list[list[Point]]:
    return [list(part) for _, part in groupby(run, key=lambda pixel: pixel[0] // width)]


def _extremes(columns: Sequence[Sequence[Point]]) -> list[Point]:
    """Return first, lowest, highest and last point of each pixel column: an equal picture."""
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
    """Return sorted heights moved apart as far as needed, inside of the plot."""
    spread: list[float] = []
    for height in heights:
        spread.append(max(height, spread[-1] + LINE_HEIGHT) if spread else max(height, top))
    limit = bottom
    # Back upwards: the first pass may have moved the last ones below the plot.
    for index in range(len(spread) - 1, -1, -1):
        spread[index] = min(spread[index], limit)
        limit = spread[index] - LINE_HEIGHT
    return spread
