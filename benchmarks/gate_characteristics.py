"""How often is the gate wrong, on test splits of the flights example's size and structure?

    python -m benchmarks.gate_characteristics [FLIGHTS] [--trials 100]

Without FLIGHTS the days are simulated: streams that are hard (gate_streams.py).
FLIGHTS is a folder made by `python examples/flights/prepare.py FLIGHTS --months 1-12`. Pairs of
models are fitted on the first months and scored on the later ones; what one is better by on each
day, with all its dependence within the day, is real. The days of one month are then the population,
whose improvement is known: every trial draws days from it, of which the last 30% are test days as
in the example, moves the challenger's losses so that its true improvement is the one wanted, and
asks `compare` and `judge`, as the pipeline does. Days are drawn one by one (independent), or in
runs of three adjacent ones on average, because bad weather lasts. Rule and effects are the
example's.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import product
from pathlib import Path
from typing import TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import JsonValue
from scipy.special import stdtrit
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.gate_streams import FEWER_DAYS, simulated_tables
from perennial.contract import load_contract
from perennial.contracts.data import DataSection, SplitSection, TaskColumns
from perennial.contracts.gate import Comparison, Interval
from perennial.engine.evaluation.resampling import Blocks, blocks_of
from perennial.engine.evaluation.scoring import Scored
from perennial.engine.metrics.probabilities import log_losses
from perennial.engine.task import Task, load_task
from perennial.gate.comparison import Conditions, Contender, Match, compare
from perennial.gate.config import GateSection
from perennial.gate.decision import Evidence, judge
from perennial.gate.power import reach_of

Floats: TypeAlias = NDArray[np.float64]
Days: TypeAlias = NDArray[np.int64]

TIME, LABEL = "scheduled_departure", "arrived_late"
TRAINED_UNTIL, REFRESHED_UNTIL = 90, 150  # days of the year
FEW_DAYS = 28  # the shortest month that is a population
CONTRACT = Path(__file__).parents[1] / "examples/flights/contract.toml"
TEST_DAYS = (9, 18, 27)  # of one month, two, three; the example judges on three
TEST_SHARE = 0.3  # the example's
SERIES: Mapping[str, float] = {"independent": 1.0, "runs of three": 3.0}
ROWS_PER_DAY = 10  # of each day; the improvement of the whole day is kept by moving them alike
RESAMPLES = 1000
BY_DAY = DataSection(uri="flights", label="label", time="day")
SINGLE = DataSection(uri="flights", label="label", group="day")  # drawn one by one
FEWER = f"ours, {FEWER_DAYS:g} effective days"
# What one block is, and whether the label imbalance of the test days is removed.
RULES = {
    "ours": (BY_DAY, True),
    FEWER: (BY_DAY, True),
    "luck left in": (BY_DAY, False),
    "luck left in, single days": (SINGLE, False),
}


@dataclass(frozen=True)
class Design:
    """How test days are drawn, and judged.

    Attributes:
        days: Their number.
        run: Mean length of the runs that they are drawn in.
        data: Says what one block is.
        conditions: Remove the label imbalance of the test days.
        gate: The example's section.
        trials: In each month.
    """

    days: int
    run: float
    data: DataSection
    conditions: bool
    gate: GateSection
    trials: int

    @property
    def effects(self) -> tuple[float, ...]:
        """True improvements to be tried."""
        stated = self.gate.worth_finding or 0.0
        return 0.0, self.gate.min_improvement, stated / 2, stated, 2 * stated


@dataclass(frozen=True)
class Month:
    """A population of days: each day's losses of challenger and champion, shape [days, rows].

    Attributes:
        challenger: Losses.
        champion: Losses.
        labels: Mean label of each day, shape [days].
    """

    challenger: Floats
    champion: Floats
    labels: Floats

    @property
    def improvement(self) -> float:
        """The true one."""
        return float((self.champion - self.challenger).mean())


def read_flights(folder: Path) -> pl.DataFrame:
    """Every flight with the day of the year, and text as numbers."""
    files = sorted(folder.glob("*/*.parquet"))
    flights = pl.concat([pl.read_parquet(file, hive_partitioning=False) for file in files])
    return flights.sort(TIME).select(
        pl.col(TIME).dt.ordinal_day().cast(pl.Int64).alias("day"),
        pl.col(TIME).dt.month().cast(pl.Int64).alias("month"),
        pl.col(LABEL).cast(pl.Float64),
        pl.col(pl.Int64, pl.Float64).exclude(LABEL).cast(pl.Float64),
        *[
            pl.col(name).rank("dense").cast(pl.Float64)
            for name in ("carrier", "dest", "origin", "weekday")
        ],
    )


def model_pairs(flights: pl.DataFrame) -> dict[str, tuple[Floats, Floats]]:
    """Losses of challenger and champion on every row."""
    inputs = flights.drop("day", "month", LABEL).to_numpy()
    filled = np.nan_to_num(inputs)
    labels, day = flights[LABEL].to_numpy(), flights["day"].to_numpy()

    def trees(rows: NDArray[np.bool_]) -> Floats:
        model = HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=15, random_state=0)
        return log_losses(model.fit(inputs[rows], labels[rows]).predict_proba(inputs)[:, 1], labels)

    def logistic(rows: NDArray[np.bool_]) -> Floats:
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
        return log_losses(model.fit(filled[rows], labels[rows]).predict_proba(filled)[:, 1], labels)

    early = day <= TRAINED_UNTIL
    first = trees(early)
    return {
        "same kind, other days": (trees(early & (day % 2 == 0)), trees(early & (day % 2 == 1))),
        "other kind": (first, logistic(early)),
        "refreshed": (trees(day <= REFRESHED_UNTIL), first),
    }


def populations(flights: pl.DataFrame, pair: tuple[Floats, Floats]) -> Iterator[Month]:
    """The months that no model has seen, with equally many rows of each day."""
    random = np.random.default_rng(0)
    day, month = flights["day"].to_numpy(), flights["month"].to_numpy()
    labels = flights[LABEL].to_numpy()
    for number in np.unique(month[day > REFRESHED_UNTIL]):
        days = np.unique(day[(month == number) & (day > REFRESHED_UNTIL)])
        if len(days) < FEW_DAYS:
            continue
        of_days = [np.flatnonzero(day == each) for each in days]
        taken = [random.choice(rows, ROWS_PER_DAY, replace=False) for rows in of_days]
        both = []
        for losses in pair:
            sample = np.stack([losses[rows] for rows in taken])
            whole = np.array([losses[rows].mean() for rows in of_days])
            both.append(sample + (whole - sample.mean(axis=1))[:, None])
        yield Month(both[0], both[1], np.array([labels[rows].mean() for rows in of_days]))


def drawn_days(count: int, of: int, mean_run: float, random: np.random.Generator) -> Days:
    """Days of a month, in runs of adjacent ones (the stationary bootstrap of Politis, 1994)."""
    days = [int(random.integers(of))]
    while len(days) < count:
        starts = random.random() < 1 / mean_run
        days.append(int(random.integers(of)) if starts else (days[-1] + 1) % of)
    return np.array(days)


def losses_only() -> Task:
    """A task of which only the loss is asked."""
    columns = TaskColumns(label="label", features={"x": "Float64"})
    task = load_task("perennial.tasks.tabular:TabularClassification", {}, columns)
    empty: dict[str, JsonValue] = {"numeric": {}, "categories": {}, "classes": ["0", "1"]}
    rest: dict[str, JsonValue] = {"class_shares": [0.5, 0.5], "target_mean": 0.0}
    task.load_state({**empty, **rest, "target_scale": 1.0, "rows": 1})
    return task


def compared(task: Task, month: Month, drawn: Days, design: Design) -> Comparison:
    """The pipeline's comparison on the last of these days, without a true improvement."""
    days = drawn[-design.days :]
    dates = [date(2013, 1, 1) + timedelta(days=number) for number in range(len(days))]
    by_row = [each for each in dates for _ in range(ROWS_PER_DAY)]
    frame = pl.DataFrame({"label": np.zeros(len(by_row)), "day": by_row})
    challenger = Contender(task, _scored(month.challenger[days] + month.improvement, frame))
    champion = Contender(task, _scored(month.champion[days], frame))
    blocks, conditions = blocks_of(frame, design.data, SplitSection()), None
    if design.conditions:
        labels = np.repeat(month.labels[days], ROWS_PER_DAY)
        expected = float(month.labels[drawn].mean())
        conditions = Conditions(labels, expected, len(days) / len(drawn))
    match = Match(challenger, champion, blocks, blocks.draws(RESAMPLES), 0.95, conditions)
    return compare(match, ("loss",))[0]


def _scored(losses: Floats, frame: pl.DataFrame) -> Scored:
    flat = losses.ravel()
    labels: Floats = (
        np.arange(len(flat), dtype=np.float64) % 2
    )  # the area needs both classes; it is not looked at
    return Scored(flat, labels, labels, np.ones(len(flat)), frame)


def promoted(comparison: Comparison, effect: float, design: Design) -> bool:
    """The gate's verdict if the true improvement is `effect`.

    It moves the mean loss of every draw alike, and so estimate and bounds.
    """
    found = comparison.improvement
    if found is None:
        raise ValueError("an interval needs two days")
    moved = Interval(
        estimate=found.estimate + effect, low=found.low + effect, high=found.high + effect
    )
    comparison = comparison.model_copy(update={"improvement": moved})
    evidence = Evidence(
        comparisons=(comparison,),
        directions={"loss": "minimize"},
        slices=(),
        baselines={},
        champion_version="1",
        champion_failure="",
        same_weights=False,
        test_rows=design.days * ROWS_PER_DAY,
        test_blocks=design.days,
        unit="day" if design.data.time else "group",
    )
    return all(reason.held for reason in judge(design.gate, evidence))


@dataclass(frozen=True)
class Tally:
    """Of the trials of one number of days and one way of drawing them.

    Attributes:
        promotions: Effect → share promoted.
        bounds: Share of bounds at 95% that hold (lower, upper).
        both: Share of two-sided intervals at 95% that hold.
        reach: The true improvement that 80% of trials would promote.
        foreseen: What the gate reports to find in 80% of tests, median of the trials.
        worst: Largest share of false promotions at effect 0 in one pair's month.
    """

    promotions: dict[float, float]
    bounds: tuple[float, float]
    both: float
    reach: float
    foreseen: float
    worst: float


def tally(
    task: Task, months: Sequence[Month], design: Design, random: np.random.Generator
) -> Tally:
    """Draw days and let the gate judge them."""
    lows, holds, foreseen, false_promotions = [], [], [], []
    promotions: dict[float, list[bool]] = {effect: [] for effect in design.effects}
    for month in months:
        wrong = []
        for _ in range(design.trials):
            count = round(design.days / TEST_SHARE)
            drawn = drawn_days(count, len(month.champion), design.run, random)
            comparison = compared(task, month, drawn, design)
            at_zero, error = comparison.improvement, comparison.standard_error
            blocks = Blocks(np.arange(design.days), design.days, "day")
            reach = reach_of(design.gate, comparison, blocks)
            if at_zero is None or error is None or comparison.degrees is None or reach is None:
                raise ValueError("an interval needs two days")
            half = float(stdtrit(comparison.degrees, 0.975)) * error
            lows.append(at_zero.low)
            foreseen.append(reach.detectable)
            holds.append((at_zero.low <= 0, at_zero.high >= 0, abs(at_zero.estimate) <= half))
            for effect in design.effects:
                promotions[effect].append(promoted(comparison, effect, design))
            wrong.append(promotions[0.0][-1])
        false_promotions.append(float(np.mean(wrong)))
    lower, upper, both = np.mean(holds, axis=0)
    return Tally(
        {effect: float(np.mean(won)) for effect, won in promotions.items()},
        (float(lower), float(upper)),
        float(both),
        design.gate.min_improvement - float(np.quantile(lows, 0.2)),
        float(np.median(foreseen)),
        max(false_promotions),
    )


def table(
    populations_by_pair: Mapping[str, list[Month]], gate: GateSection, trials: int
) -> Iterator[str]:
    """The lines of the results: all pairs at each size, then each at the example's size."""
    task = losses_only()
    everyone = [month for months in populations_by_pair.values() for month in months]
    stated = Design(9, 1.0, BY_DAY, True, gate, trials)
    effects = " | ".join(f"promoted at {effect:g}" for effect in stated.effects)
    bounds = "lower | upper | both | 80% from | foreseen | worst"
    yield f"| models | days | drawn | rule | {effects} | {bounds} |"
    yield "|---" * (len(stated.effects) + 10) + "|"
    for pair, months in {"all": everyone, **populations_by_pair}.items():
        sizes = TEST_DAYS if pair == "all" else TEST_DAYS[-1:]
        for days, (drawn, run), (rule, (data, known)) in product(
            sizes, SERIES.items(), list(RULES.items())[: None if pair == "all" else 1]
        ):
            needed = FEWER_DAYS if rule == FEWER else gate.min_effective_days
            asked = gate.model_copy(update={"min_effective_days": needed})
            design = Design(days, run, data, known, asked, trials)
            found = tally(task, months, design, np.random.default_rng(1))
            shares = " | ".join(f"{share:.1%}" for share in found.promotions.values())
            lower, upper = found.bounds
            yield (
                f"| {pair} | {days} | {drawn} | {rule} | {shares} | {lower:.1%} | {upper:.1%} "
                f"| {found.both:.1%} | {found.reach:.3f} | {found.foreseen:.3f} "
                f"| {found.worst:.1%} |"
            )


def main() -> None:
    """Print the table, as Markdown."""
    parser = argparse.ArgumentParser(description="Measure how often the gate is wrong.")
    parser.add_argument(
        "flights", type=Path, nargs="?", metavar="FLIGHTS", help="folder of partitions"
    )
    parser.add_argument("--trials", type=int, default=100, help="of each month of each pair")
    arguments = parser.parse_args()
    if arguments.flights is None:
        print("\n".join(simulated_tables(20 * arguments.trials)))
        return
    flights = read_flights(arguments.flights)
    pairs = model_pairs(flights)
    months = {name: list(populations(flights, pair)) for name, pair in pairs.items()}
    section = load_contract(CONTRACT).gate
    gate = section.model_copy(update={"metric": "loss", "must_beat": (), "min_test_rows": 1})
    for line in table(months, gate, arguments.trials):
        print(line, flush=True)


if __name__ == "__main__":
    main()
