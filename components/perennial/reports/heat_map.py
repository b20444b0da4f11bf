"""Heat map: a matrix of values as shades."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from perennial.reports.drawing import (
    AXIS_SPACE,
    Axis,
    fill,
    horizontal_axis,
    nothing,
    sideways_title,
    svg,
    text_at,
    width_of,
)

_MOST_CELLS = 48
"""Cells along a side; more would be smaller than the eye tells apart."""
_SIDE = 264.0
_TOP = 12.0
_SHADES = 8
_INVISIBLE = 0.005
"""Values below are not drawn; above, even the faintest gets a shade."""

Cells = Sequence[Sequence[float]]


@dataclass(frozen=True)
class _NamedAxis(Axis):
    """An axis of rows or columns that have names."""

    names: Sequence[str] = ()

    @property
    def tick_labels(self) -> list[str]:
        """The names of the rows or columns at the ticks."""
        return [self.names[round(tick)] for tick in self.ticks]


def heat_map(
    cells: Cells,
    *,
    x_label: str,
    y_label: str,
    shade: str = "dependence",
    names: Sequence[str] = (),
) -> str:
    """Draw values from 0 to 1, the first row on top; values beyond count as the nearer of the two.

    Where rows or columns are many, a cell shows the largest of those that it stands for. NaN leaves
    a gap. `shade` names what the cells show, above the legend; `names` are those of the rows and of
    the columns, by default their numbers from 0.

    Raises:
        ValueError: the rows differ in length.
    """
    widths = {len(row) for row in cells}
    if len(widths) > 1:
        raise ValueError(f"the rows of a heat map have {sorted(widths)} values")
    rows, columns = len(cells), max(widths, default=0)
    bottom = _TOP + _SIDE
    left = 34 + max(width_of(f"{rows:,}"), *map(width_of, names), 0.0)
    about = f"Map of {y_label} by {x_label}: {rows} by {columns}"
    if not rows or not columns:
        return svg(60, about, [nothing(left + _SIDE / 2, 30)])
    stride = -(-max(rows, columns) // _MOST_CELLS)
    names = names or [f"{number:,}" for number in range(max(rows, columns))]
    x_axis = _NamedAxis(-0.5, columns - 0.5, left, left + _SIDE, min(6, columns), names)
    y_axis = _NamedAxis(-0.5, rows - 0.5, _TOP, bottom, min(6, rows), names)
    drawn = list(_shaded(cells, stride, x_axis, y_axis))
    outline = f"M{left:.1f} {_TOP:.1f}h{_SIDE:.1f}v{_SIDE:.1f}h-{_SIDE:.1f}z"
    drawn.append(f'<path class="a" d="{outline}"/>')
    drawn += [horizontal_axis(x_axis, bottom, x_label), _vertical_axis(y_axis, left - 6, y_label)]
    drawn.append(_legend(left + _SIDE + 24, shade))
    height = bottom + AXIS_SPACE + (18 if stride > 1 else 0)
    if stride > 1:
        note = f"a cell is the largest of {stride} by {stride} values"
        drawn.append(text_at(left, height - 6, note, classes="q"))
    return svg(height, about, drawn)


def _shaded(cells: Cells, stride: int, x_axis: Axis, y_axis: Axis) -> Iterator[str]:
    """Yield one path for each shade: cells of a shade that touch in a row are one rectangle."""
    parts: dict[int, list[str]] = {}
    for top in range(0, len(cells), stride):
        below = min(top + stride, len(cells))
        y, end = y_axis.at(top - 0.5), y_axis.at(below - 0.5)
        start = 0
        for shade, run in groupby(_shades(cells[top:below], stride)):
            stop = start + len(list(run))
            x, right = (x_axis.at(edge * stride - 0.5) for edge in (start, stop))
            box = f"M{x:.1f} {y:.1f}H{right:.1f}V{end:.1f}H{x:.1f}z"
            parts.setdefault(shade, []).append(box)
            start = stop
    for shade in sorted(parts.keys() - {0}):
        yield _patch(shade, "".join(parts[shade]))


def _shades(rows: Cells, stride: int) -> Iterator[int]:
    """Yield the shade of each cell that these rows are drawn as."""
    for first in range(0, len(rows[0]), stride):
        values = [value for row in rows for value in row[first : first + stride]]
        largest = max((value for value in values if not math.isnan(value)), default=0.0)
        inside = min(largest, 1.0)
        # The tolerance keeps rounding from giving a limit the next darker shade.
        yield 0 if inside < _INVISIBLE else math.ceil(inside * _SHADES - 1e-9)


def _patch(shade: int, path: str) -> str:
    opacity = f"{shade / _SHADES:.3f}"
    values = f"{max(shade - 1, 0) / _SHADES:g} to {shade / _SHADES:g}"
    return (
        f'<path class="{fill(0)}" fill-opacity="{opacity}" shape-rendering="crispEdges" '
        f'd="{path}"><title>{values}</title></path>'
    )


def _vertical_axis(axis: Axis, right: float, label: str) -> str:
    parts = []
    for tick, written in zip(axis.ticks, axis.tick_labels, strict=True):
        parts.append(text_at(right, axis.at(tick) + 4, written, classes="e q"))
    middle = (axis.start + axis.end) / 2
    parts.append(sideways_title(middle, label, abs(axis.end - axis.start)))
    return "".join(parts)


def _legend(left: float, shade_name: str) -> str:
    """Draw the shades from none to full."""
    height = 14.0
    parts = [text_at(left, _TOP + 10, shade_name, classes="q", limit=12)]
    for shade in range(_SHADES, -1, -1):
        y = _TOP + 20 + height * (_SHADES - shade)
        box = f"M{left:.1f} {y:.1f}h18v{height:.1f}h-18z"
        parts.append(_patch(shade, box))
        parts.append(f'<path class="g" d="{box}"/>')
        if shade in (0, _SHADES // 2, _SHADES):
            parts.append(text_at(left + 26, y + 11, f"{shade / _SHADES:g}", classes="q"))
    return "".join(parts)
