"""The parts that charts are drawn from: axes of numbers and dates, canvas, frame, labels, lines."""

import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TypeVar

from perennial.reports.text import escaped, number, shortened

MINUS = "\N{MINUS SIGN}"
_TIMES_TEN = "\N{MULTIPLICATION SIGN}10"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# Keeps spans and steps away from overflow and from denormal numbers.
_LARGEST = 1e300
_SMALLEST = 1e-290
_DAY = 86_400.0
_DAYS = (1 / 24, 1 / 8, 1 / 4, 1 / 2, 1, 2, 7, 14)
_MONTHS = (1, 3, 6, 12, 24, 60, 120, 300, 600, 1200, 6000, 12_000, 24_000, 60_000, 120_000)
# 1970 began on a Thursday.
_FIRST_MONDAY = 4 * _DAY
_FIRST_YEAR = datetime(1, 1, 1, tzinfo=UTC).timestamp()
_LAST_YEAR = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
WIDTH = 440.0
"""Width of the canvas: text keeps its size in a figure on a page, and is readable on a phone."""
AXIS_SPACE = 42.0
"""Height of tick labels and title below a horizontal axis."""
LINE_HEIGHT = 16.0
ASCENT = 13.0
"""Height of the tallest letters above the line, at 12 pixels, in the tallest font in common use."""
_COLORS = 6
_MARGIN = 1.06
"""By which a font may be wider than the one that widths are taken from."""

AnyAxis = TypeVar("AnyAxis", bound="Axis")


@dataclass(frozen=True)
class Axis:
    """Maps values to pixels.

    Args:
        low: Value at the `start` pixel.
        high: Value at the `end` pixel, greater than `low`.
        start: First pixel.
        end: Last pixel; less than `start` on a vertical axis, as SVG counts downwards.
        max_ticks: Most steps that the axis is divided into.
    """

    low: float
    high: float
    start: float
    end: float
    max_ticks: int = 6

    def at(self, value: float) -> float:
        """Return the pixel of a value, limited to the axis; NaN stays NaN."""
        if math.isnan(value):
            return value
        inside = min(max(value, self.low), self.high)
        return self.start + (inside - self.low) / (self.high - self.low) * (self.end - self.start)

    @property
    def step(self) -> float:
        """The distance between ticks: 1, 2 or 5 times a power of ten."""
        least = (self.high - self.low) / self.max_ticks
        power = 10.0 ** math.floor(math.log10(least))
        # The tolerance keeps rounding from choosing the next larger step.
        return next(nice * power for nice in (1, 2, 5, 10) if nice * power >= least * (1 - 1e-9))

    @property
    def ticks(self) -> list[float]:
        """The ticks inside of the range."""
        first = math.ceil(self.low / self.step - 1e-9)
        last = math.floor(self.high / self.step + 1e-9)
        # Multiplied, not added up: the errors of a rounded step would add up too.
        return [index * self.step for index in range(first, last + 1)]

    @property
    def exponent(self) -> int:
        """The power of ten that is left out of the tick labels; a multiple of three."""
        magnitude = math.floor(math.log10(max(abs(self.low), abs(self.high))))
        return 0 if -3 <= magnitude < 6 else magnitude // 3 * 3

    @property
    def tick_labels(self) -> list[str]:
        """The ticks as text, all with the same number of decimals."""
        scale = 10.0**self.exponent
        decimals = max(0, -math.floor(math.log10(self.step / scale) + 1e-9))
        labels = [f"{tick / scale:,.{decimals}f}" for tick in self.ticks]
        return [label.replace("-", MINUS) if label.strip("-0.") else "0" for label in labels]

    def shown(self, value: float) -> str:
        """Return a value as text, shown where a point of the chart is pointed at."""
        return number(value)

    def title(self, label: str) -> str:
        """Return the axis' label with the power of ten that its ticks leave out."""
        if not self.exponent:
            return label
        return f"{label} ({_TIMES_TEN}{str(self.exponent).translate(_SUPERSCRIPT)})".strip()


class DateAxis(Axis):
    """An axis whose values are seconds since 1970, in UTC."""

    @classmethod
    def can_show(cls, low: float, high: float) -> bool:
        """Whether the calendar reaches this far."""
        return low >= _FIRST_YEAR and high <= _LAST_YEAR

    @property
    def ticks(self) -> list[float]:
        """The beginnings of days, weeks, months or years inside of the range."""
        days = self._days
        if days is None:
            return [x for x in self._month_starts() if self.low <= x <= self.high]
        step, origin = days * _DAY, _FIRST_MONDAY if days >= 7 else 0.0
        first = -int((origin - self.low) // step)
        last = int((self.high - origin) // step)
        return [origin + index * step for index in range(first, last + 1)]

    @property
    def tick_labels(self) -> list[str]:
        """The ticks as dates, as precise as their distance."""
        days, months = self._days, self._months
        if days is None:
            form = "%Y" if months % 12 == 0 else "%Y-%m"
        else:
            form = "%m-%d %H:%M" if days < 1 else "%Y-%m-%d"
        return [datetime.fromtimestamp(tick, UTC).strftime(form) for tick in self.ticks]

    def shown(self, value: float) -> str:
        """Return a date and its time."""
        return f"{datetime.fromtimestamp(value, UTC):%Y-%m-%d %H:%M}"

    @property
    def exponent(self) -> int:
        """Dates are written out."""
        return 0

    @property
    def _days(self) -> float | None:
        least = (self.high - self.low) / self.max_ticks / _DAY
        return next((days for days in _DAYS if days >= least), None)

    @property
    def _months(self) -> int:
        least = (self.high - self.low) / self.max_ticks / _DAY / 31
        return next((months for months in _MONTHS if months >= least), _MONTHS[-1])

    def _month_starts(self) -> Iterator[float]:
        start, step = datetime.fromtimestamp(self.low, UTC), self._months
        end = datetime.fromtimestamp(self.high, UTC)
        # A multiple of the step since the year 0, so that years and quarters begin at ticks.
        month = -(-(start.year * 12 + start.month - 1) // step) * step
        for index in range(month, end.year * 12 + end.month, step):
            year, zero_based = divmod(index, 12)
            yield datetime(year, zero_based + 1, 1, tzinfo=UTC).timestamp()


def seconds_at(moment: date) -> float:
    """Return the place of a moment or day, taken as UTC, on a `DateAxis`."""
    clock = moment if isinstance(moment, datetime) else datetime(*moment.timetuple()[:3])
    return clock.replace(tzinfo=UTC).timestamp()


def finite(values: Iterable[float]) -> list[float]:
    """Return the numbers among the values, limited to a size that can be drawn."""
    return [limited(value) for value in values if math.isfinite(value)]


def limited(value: float) -> float:
    """Return a value that spans and steps can be computed with; infinities become NaN."""
    if not math.isfinite(value):
        return math.nan
    if abs(value) < _SMALLEST:
        return 0.0
    return float(min(max(value, -_LARGEST), _LARGEST))


def padded_range(values: Iterable[float], padding: float = 0.0) -> tuple[float, float]:
    """Return the range of the finite values, widened if it is empty; 0 to 1 without values."""
    known = finite(values)
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    # Below this share of their size, differences are rounding and labels would need >9 digits.
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        margin = abs(low) / 10 or 1.0
    else:
        margin = (high - low) * padding
    return low - margin, high + margin


def svg(height: float, about: str, parts: Sequence[str]) -> str:
    """Return the whole drawing; screen readers read `about`."""
    label = escaped(about)
    return (
        f'<svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" aria-label="{label}">'
        f"<title>{label}</title>{''.join(parts)}</svg>"
    )


def text_at(x: float, y: float, text: str, *, classes: str = "", limit: int = 60) -> str:
    """Draw a text, shortened to a limit, in full when pointed at."""
    cut = shortened(text, limit)
    title = f"<title>{escaped(text)}</title>" if cut != text else ""
    name = f' class="{classes}"' if classes else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{name}>{escaped(cut)}{title}</text>'


def width_of(text: str) -> float:
    """Return about how many pixels a text takes: rather too many, as fonts differ."""
    return _MARGIN * sum(map(_character_width, text))


def within(text: str, room: float) -> str:
    """Return a text, shortened to so many pixels."""
    cut = text
    while width_of(cut) > room and len(cut) > 3:
        cut = shortened(text, len(cut) - 1)
    return cut


def stroke(index: int) -> str:
    """Return the classes of a series' line; from the seventh on, colors repeat with dashes."""
    return f"s{index % _COLORS + 1}" + (" d" if index >= _COLORS else "")


def fill(index: int) -> str:
    """Return the class of a series' area or text."""
    return f"f{index % _COLORS + 1}"


def fitted(kind: type[AnyAxis], limits: tuple[float, float], start: float, end: float) -> AnyAxis:
    """Return a horizontal axis with as many ticks as its labels leave room for."""
    axes = (kind(*limits, start, end, count) for count in (7, 5, 4, 3, 2, 1))
    room = end - start
    return next(
        (axis for axis in axes if sum(width_of(label) + 14 for label in axis.tick_labels) < room),
        kind(*limits, start, end, 1),
    )


def frame(x_axis: Axis, y_axis: Axis, x_label: str, y_label: str) -> str:
    """Draw both axes of a plot with horizontal grid lines."""
    parts = [horizontal_axis(x_axis, y_axis.start, x_label)]
    for tick, label in zip(y_axis.ticks, y_axis.tick_labels, strict=True):
        y = y_axis.at(tick)
        parts.append(f'<path class="g" d="M{x_axis.start:.1f} {y:.1f}H{x_axis.end:.1f}"/>')
        parts.append(text_at(x_axis.start - 6, y + 4, label, classes="e q"))
    middle = (y_axis.start + y_axis.end) / 2
    room = abs(y_axis.end - y_axis.start)
    parts.append(sideways_title(middle, y_axis.title(y_label), room))
    return "".join(parts)


def sideways_title(middle: float, title: str, room: float) -> str:
    """Draw the title of a vertical axis, shortened to its length, and in full when pointed at."""
    return (
        f'<text class="m q" transform="translate({ASCENT + 1:.0f} {middle:.0f}) rotate(-90)">'
        f"{escaped(within(title, room))}<title>{escaped(title)}</title></text>"
    )


def left_of(y_axis: Axis) -> float:
    """Return the left end of a plot, beside the labels of its vertical axis."""
    return 32 + max(map(width_of, y_axis.tick_labels), default=0.0)


def horizontal_axis(axis: Axis, bottom: float, label: str) -> str:
    """Draw a line with ticks, their labels and a title."""
    marks = "".join(f"M{axis.at(tick):.1f} {bottom:.1f}v4" for tick in axis.ticks)
    parts = [f'<path class="a" d="M{axis.start:.1f} {bottom:.1f}H{axis.end:.1f}{marks}"/>']
    for tick, written in zip(axis.ticks, axis.tick_labels, strict=True):
        half = width_of(written) / 2
        x = min(max(axis.at(tick), half), WIDTH - half)
        parts.append(text_at(x, bottom + 17, written, classes="m q"))
    title = within(axis.title(label), WIDTH)
    half = width_of(title) / 2
    middle = min(max((axis.start + axis.end) / 2, half), WIDTH - half)
    parts.append(text_at(middle, bottom + 35, title, classes="m q", limit=80))
    return "".join(parts)


def vertical_grid(axis: Axis, top: float, bottom: float, label: str) -> str:
    """Draw a horizontal axis with a line through the plot at each tick."""
    lines = "".join(f"M{axis.at(tick):.1f} {top:.0f}V{bottom:.0f}" for tick in axis.ticks)
    grid = f'<path class="g" d="{lines}"/>' if lines else ""
    return grid + horizontal_axis(axis, bottom, label)


def nothing(x: float, y: float) -> str:
    """Draw the text of a chart without values."""
    return text_at(x, y, "no values", classes="m q")


def _character_width(character: str) -> float:
    # Of DejaVu Sans at 12 pixels: the widest font in common use.
    if character in "fijlrtI.,:;'|!()[] ":
        return 4.9
    if character in f"mwMW@%&…+=<>±{MINUS}" or unicodedata.east_asian_width(character) in "WF":
        return 12.0
    return 8.7 if character.isupper() else 7.6
