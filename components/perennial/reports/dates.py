"""Dates on an axis: ticks at days, weeks, months or years instead of round numbers of seconds."""

from collections.abc import Iterator
from datetime import UTC, datetime

from perennial.reports.axes import Axis

_DAY = 86_400.0
_DAYS = (1 / 24, 1 / 8, 1 / 4, 1 / 2, 1, 2, 7, 14)
_MONTHS = (1, 3, 6, 12, 24, 60, 120, 300, 600, 1200, 6000, 12_000, 24_000, 60_000, 120_000)
_FIRST_MONDAY = 4 * _DAY
_FIRST_YEAR = datetime(1, 1, 1, tzinfo=UTC).timestamp()
_LAST_YEAR = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


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
        month = -(-(start.year * 12 + start.month - 1) // step) * step
        for index in range(month, end.year * 12 + end.month, step):
            year, zero_based = divmod(index, 12)
            yield datetime(year, zero_based + 1, 1, tzinfo=UTC).timestamp()
