"""Run `python -m benchmarks.drift_false_alarms FLIGHTS`: how often does which drift rule alarm?

FLIGHTS is a folder made by `python examples/flights/prepare.py FLIGHTS --months 1-12`. The weeks of
January to March are the reference. Each is judged by the others (a quiet week that alarms is a
false alarm), then the weeks of April to December are judged by all of them. Peers are the textbook
rules: any p-value below 0.05, the same with Bonferroni's correction, and any effect of 0.1.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.monitoring import Reference
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.triggers import TriggersSection
from perennial.contracts.validation import BlockSketch, CategoricalSketch, NumericSketch
from perennial.detect_drift.reference import Measured, measure_windows
from perennial.detect_drift.windows import choose_blocks

TIME = "scheduled_departure"
LABEL = "arrived_late"
NOT_FEATURES = {TIME, LABEL, "flight_id", "tailnum", "weather_observed_at"}
CHAMPION_UNTIL = datetime(2013, 3, 31, 23, 59)
LEVELS = np.linspace(0.0, 1.0, 101)
EPOCH = datetime(1970, 1, 1)
WEEK = timedelta(days=7)


def sketch_weeks(flights: pl.DataFrame, shift_days: int = 0) -> list[BlockSketch]:
    """The flights' weeks on the fixed grid, moved by some days."""
    origin = EPOCH + timedelta(days=shift_days)
    week = ((pl.col(TIME) - origin).dt.total_days() // 7).alias("week")
    groups = flights.with_columns(week).group_by("week", maintain_order=True)
    return [_sketch(rows, origin + int(str(key[0])) * WEEK) for key, rows in groups]


def _sketch(rows: pl.DataFrame, start: datetime) -> BlockSketch:
    numeric, categorical = {}, {}
    for name, dtype in rows.schema.items():
        values = rows[name]
        if name in NOT_FEATURES or name == "week":
            continue
        if dtype == pl.String:
            counts = values.drop_nulls().value_counts()
            categorical[name] = CategoricalSketch(
                counts=dict(counts.iter_rows()), nulls=values.null_count()
            )
        else:
            known = values.drop_nulls().cast(pl.Float64).to_numpy()
            quantiles = np.quantile(known, LEVELS).tolist() if len(known) else []
            numeric[name] = NumericSketch(quantiles=tuple(quantiles), nulls=values.null_count())
    return BlockSketch(
        start=start,
        end=start + WEEK,
        rows=rows.height,
        label_mean=rows.select(pl.col(LABEL).cast(pl.Float64).mean()).item(),
        numeric=numeric,
        categorical=categorical,
    )


def until(newest: datetime) -> Snapshot:
    """A snapshot that ends there, as far as choosing blocks needs one."""
    data = DataSection(uri="flights", label=LABEL, time=TIME)
    return Snapshot(
        data=data,
        split=SplitSection(),
        files=(),
        columns={},
        rows=0,
        split_rows={},
        time_max=newest,
    )


def calibrated(measured: Measured) -> list[bool]:
    """Ours."""
    return [window.alarmed for window in measured.windows]


def p_value_below(level: float, *, corrected: bool) -> Callable[[Measured], list[bool]]:
    """Any column's p-value for independent rows."""

    def alarms(measured: Measured) -> list[bool]:
        features = [p for p in measured.profiles if p.statistic != "label_mean"]
        limit = level / len(features) if corrected else level
        first = measured.old.stop
        return [
            any(profile.iid_p_value(first + index, measured.old) < limit for profile in features)
            for index in range(len(measured.windows))
        ]

    return alarms


def effect_from(floor: float) -> Callable[[Measured], list[bool]]:
    """Any column's effect, whatever is usual for it."""

    def alarms(measured: Measured) -> list[bool]:
        return [
            any(c.effect >= floor and c.statistic != "label_mean" for c in window.columns)
            for window in measured.windows
        ]

    return alarms


RULES: dict[str, Callable[[Measured], list[bool]]] = {
    "calibrated on blocks (ours)": calibrated,
    "any p < 0.05": p_value_below(0.05, corrected=False),
    "any p < 0.05, Bonferroni": p_value_below(0.05, corrected=True),
    "any effect >= 0.1": effect_from(0.1),
}


def compare(weeks: Sequence[BlockSketch], newest: datetime) -> None:
    """Print the rules' alarms side by side, then ours month by month."""
    triggers = TriggersSection()
    known = tuple(week for week in weeks if week.start is not None and week.start < CHAMPION_UNTIL)
    reference = Reference(
        snapshot_digest="", time_max=CHAMPION_UNTIL, rows=0, blocks=known, performance=()
    )
    chosen = choose_blocks(reference, weeks, until(newest))
    old, new = chosen.reference, chosen.windows
    left_out = [
        measure_windows([*old[:index], *old[index + 1 :]], [week], triggers)
        for index, week in enumerate(old)
    ]
    started = time.process_time()
    later = measure_windows(old, new, triggers)
    seconds = time.process_time() - started
    print(f"{len(old)} reference weeks, {len(new)} later weeks, {seconds:.2f} s CPU")
    print(f"{'rule':<30}{'quiet weeks alarmed':>22}{'later weeks alarmed':>22}")
    for name, rule in RULES.items():
        quiet = sum(rule(measured)[0] for measured in left_out)
        found = sum(rule(later))
        print(f"{name:<30}{f'{quiet} of {len(old)}':>22}{f'{found} of {len(new)}':>22}")
    for week, measured in zip(old, left_out, strict=True):
        for column in measured.windows[0].columns:
            if column.alarmed:
                effect, z_score = f"{column.effect:.3f}", f"{column.z_score:.1f}"
                print(f"quiet alarm {week.start:%d %b}: {column.column} {effect}, z {z_score}")
    by_month: dict[str, list[bool]] = {}
    for window in later.windows:
        by_month.setdefault(f"{window.start:%b}", []).append(window.alarmed)
    print("; ".join(f"{month} {sum(a)}/{len(a)}" for month, a in by_month.items()))
    pairs = zip(later.windows, later.windows[1:], strict=False)
    second = next((b for a, b in pairs if a.alarmed and b.alarmed), None)
    print(f"first trigger: {second.end:%d %b}" if second else "no trigger")
    for column in [c for c in (second.columns if second else ()) if c.alarmed]:
        print(f"  {column.column}: effect {column.effect:.3f}, z {column.z_score:.1f}")


def main() -> None:
    """Compare on the fixed grid, then on grids moved by a day each, to show the luck in it."""
    parser = argparse.ArgumentParser(description="Measure false alarms of drift rules.")
    parser.add_argument("flights", type=Path, metavar="FLIGHTS", help="folder of partitions")
    arguments = parser.parse_args()
    files = sorted(arguments.flights.glob("*/*.parquet"))
    if not files:
        parser.error(f"{arguments.flights} holds no partitions; make them with prepare.py")
    flights = pl.concat([pl.read_parquet(file, hive_partitioning=False) for file in files])
    newest: datetime = flights.select(pl.col(TIME).max()).item()
    for shift_days in range(7):
        print(f"\nweeks from the grid moved by {shift_days} days")
        compare(sketch_weeks(flights, shift_days), newest)


if __name__ == "__main__":
    main()
