"""Repeated tests: correct the confidence for earlier tests of a champion on the same days.

Of thirty challengers that are no better, tested against one champion on the same days, a third of
such families had one promoted at 95% confidence each. So the level is spent (alpha spending): the
first challenger gets all of it, later ones less and less, until the test days or the champion
change. The sum over thirty tests is 1.25 times the level, so a family's false promotions stay near
one in 20 (benchmarks/results/gate_characteristics.md). Rejected there: Bonferroni's and
1 / (k (k + 1)), which take half of the first challenger's level or more; 1 / (1 + 1.3 j^2.5), by
which 8% of families promote any.
"""

import math
from collections.abc import Iterator, Sequence
from datetime import date, timedelta

import polars as pl

from perennial.clients.object_store import ObjectStore, StoredRecord
from perennial.contracts.environment import NO_RUN
from perennial.contracts.gate import Repeats
from perennial.contracts.section import Section
from perennial.engine.metrics.arrays import NUMBERS_AT_ONCE, slices_of

STEEPNESS, POWER = 4.0, 3.0
KEPT_TESTS = 1000
"""Number of newest tests kept per model; far more than can share test days."""

Days = tuple[tuple[date, date], ...]
"""First and last day of each run of adjacent test days."""


class PastTest(Section):
    """One challenger that was compared with one champion."""

    champion: str
    """The champion's version."""
    champion_sha256: str
    challenger_sha256: str
    run_id: str
    blocks: int
    """Blocks of the test split."""
    days: Days = ()
    """Empty for blocks without a date: a smaller set of those counts as part of a larger one."""

    def overlap(self, earlier: "PastTest") -> float:
        """Return the share of this test's blocks that an earlier test had too."""
        if self.days and earlier.days:
            ours, theirs = set(_dates(self.days)), set(_dates(earlier.days))
            return len(ours & theirs) / len(ours)
        return min(1.0, earlier.blocks / self.blocks)

    def repeats(self, other: "PastTest") -> bool:
        """Whether it is the same test: of the same weights, or by the same run."""
        # All runs outside a pipeline share one id, which identifies none of them.
        same_run = self.run_id == other.run_id != NO_RUN
        return self.rivals(other) and (
            same_run or self.challenger_sha256 == other.challenger_sha256
        )

    def rivals(self, other: "PastTest") -> bool:
        """Whether both challenged the same champion."""
        return (self.champion, self.champion_sha256) == (other.champion, other.champion_sha256)


class PastTests(Section):
    """The comparisons of one model's challengers, the oldest first."""

    schema_version: int = 1
    tests: tuple[PastTest, ...] = ()

    def with_test(self, test: PastTest) -> "PastTests":
        """Return a copy that contains the test, replacing its first attempt if it had one."""
        tests = list(self.tests)
        for place, known in enumerate(tests):
            if test.repeats(known):
                # The days of both attempts are used up: the data may have grown between them.
                merged = runs_of({*_dates(known.days), *_dates(test.days)})
                tests[place] = test.model_copy(update={"days": merged})
                return self.model_copy(update={"tests": tuple(tests)})
        return self.model_copy(update={"tests": (*tests, test)[-KEPT_TESTS:]})

    def earlier(self, test: PastTest) -> Iterator[float]:
        """Yield the overlap with each earlier challenger of the same champion."""
        for known in self.tests:
            if test.repeats(known):
                return
            if test.rivals(known):
                yield test.overlap(known)


def spent_level(level: float, earlier: float) -> float:
    """Return the remaining level after this many earlier tests on the same days."""
    return level / (1.0 + STEEPNESS * math.pow(earlier, POWER))


def claim_test(
    store: ObjectStore, model: str, test: PastTest, level: float, *, place: str = "gate"
) -> Repeats:
    """Record a test before it runs; return how often its days were used before.

    A repeated test, of the same weights or by the same run, keeps its place. Of two concurrent
    tests, one writes first and the other counts it.

    The record is `<place>/<model>/tests.json`; `level` is one minus the confidence. Studies of
    hyperparameters have a place of their own: they test other candidates against another rival.

    Raises:
        PerennialError: the record is damaged, or other writers keep conflicting.
    """

    def claimed(stored: PastTests | None) -> tuple[PastTests, Repeats]:
        history = stored or PastTests()
        overlaps = [share for share in history.earlier(test) if share > 0]
        worth = sum(overlaps)
        repeats = Repeats(earlier=len(overlaps), worth=worth, level=spent_level(level, worth))
        return history.with_test(test), repeats

    return StoredRecord(
        store,
        f"{place}/{model}/tests.json",
        PastTests,
        f"the record of earlier tests of {model}",
        "restore it, or delete it to reset the count of tests on these days",
    ).update(claimed)


def days_of(rows: pl.DataFrame, time: str | None) -> Days:
    """Return the days of the test rows; empty without a time column."""
    if not time:
        return ()
    parts = slices_of(rows.height, NUMBERS_AT_ONCE)
    days = (rows[part][time].dt.date().drop_nulls().unique().to_list() for part in parts)
    return runs_of({day for part in days for day in part})


def runs_of(days: set[date]) -> Days:
    """Group days into runs of adjacent ones."""
    runs: list[tuple[date, date]] = []
    for day in sorted(days):
        if runs and day - runs[-1][1] == timedelta(days=1):
            runs[-1] = (runs[-1][0], day)
        else:
            runs.append((day, day))
    return tuple(runs)


def _dates(days: Sequence[tuple[date, date]]) -> Iterator[date]:
    for first, last in days:
        yield from (first + timedelta(days=number) for number in range((last - first).days + 1))
