"""Run `python -m benchmarks.selection_regret`: how much does which way of choosing give away?

Synthetic trainings whose true loss is known at every checkpoint, in five shapes. While one
trains, each checkpoint is scored on a sample of the validation rows; what is kept is decided by the
engine's own retention, and our choice is the step's own function on all validation rows. Regret is
the true loss of the shipped checkpoint minus that of the best of all checkpoints, kept or not.

Rows are alike within a day and harder or easier for every checkpoint; on top, each checkpoint has
errors of its own on rows and days, more alike the closer two checkpoints are. The whole is
repeated with a smaller and a larger error.

Beside the rules that ours must beat stand its relatives: the one-standard-error rule, which always
takes the earlier step, ours with that tolerance, and the best figure on all rows.
"""

import argparse
import math
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape

import numpy as np
import polars as pl
from numpy.typing import NDArray

from benchmarks.record import keep_page, result_file
from perennial.contracts.data import TaskColumns
from perennial.contracts.training import CheckpointRecord, EvaluationPoint
from perennial.engine.checkpoints.checkpointer import Retention
from perennial.engine.config.training import Checkpoints
from perennial.engine.evaluation.diagnosis import is_still_improving
from perennial.engine.evaluation.resampling import Blocks
from perennial.engine.evaluation.scoring import Scored
from perennial.engine.task import Task, load_task
from perennial.reports.charts import line_chart
from perennial.reports.page import TEMPLATES, checked_svg
from perennial.select_checkpoint.config import SelectionSection
from perennial.select_checkpoint.selection import Candidate, early_stop, select

Floats = NDArray[np.float64]

EVALUATIONS, STEPS_BETWEEN = 40, 100
DAYS, ROWS_PER_DAY = 40, 50
ROWS = DAYS * ROWS_PER_DAY
SAMPLED_ROWS = ROWS // 4
TIMES = np.linspace(1.0 / EVALUATIONS, 1.0, EVALUATIONS)
"""Of the evaluations, as shares of the training."""
BLOCKS = Blocks(np.arange(ROWS) // ROWS_PER_DAY, DAYS, "day")
# Standard deviations of a row's loss; the gain of a training is 0.2 to 0.6.
ROW_DIFFICULTY, ROW_ERROR, DAY_ERROR = 0.5, 0.15, 0.02
LIKENESS = 0.8  # correlation of the errors of two neighbouring checkpoints
JITTER = 0.01  # of the true loss between neighbours, as a share of the gain; weights keep moving
ERROR_FACTORS = (0.5, 1.0, 2.0)
LARGEST_DRAWN = 0.03
DEFAULT = SelectionSection().tolerance_standard_errors


def still_improving(random: np.random.Generator) -> Floats:
    """A power law: every later step is better."""
    return np.asarray((1 + TIMES / random.uniform(0.02, 0.2)) ** -random.uniform(0.3, 1.0))


def saturating(random: np.random.Generator) -> Floats:
    """Falls until a tenth to a third of the training, then stays."""
    return np.asarray(np.exp(-TIMES / random.uniform(0.03, 0.1)))


def overfitting(random: np.random.Generator) -> Floats:
    """Falls, then rises by a tenth to the whole of the gain."""
    onset = random.uniform(0.15, 0.6)
    rise = random.uniform(0.1, 1.0) * np.maximum(0.0, (TIMES - onset) / (1 - onset))
    return saturating(random) + rise ** random.uniform(1.0, 2.0)


def noisy(random: np.random.Generator) -> Floats:
    """Saturates, but the weights jump about: the true loss differs between neighbours."""
    jumps = np.abs(random.normal(size=EVALUATIONS))
    return saturating(random) + random.uniform(0.05, 0.2) * jumps


def rising_train_loss(random: np.random.Generator) -> Floats:
    """Training itself breaks at some step and does not recover."""
    breaks = random.uniform(0.3, 0.9)
    return saturating(random) + random.uniform(0.5, 2.0) * (breaks <= TIMES) * (1 + TIMES - breaks)


SHAPES: dict[str, Callable[[np.random.Generator], Floats]] = {
    "still improving": still_improving,
    "saturating": saturating,
    "overfitting": overfitting,
    "noisy": noisy,
    "rising train loss": rising_train_loss,
}


@dataclass(frozen=True)
class Training:
    """One synthetic training.

    Attributes:
        true: Loss of each checkpoint over infinitely many rows, [evaluations].
        losses: Of every validation row under each checkpoint, [evaluations, rows].
        sampled: The figures of evaluations while training, [evaluations].
    """

    true: Floats
    losses: Floats
    sampled: Floats


def train(shape: str, random: np.random.Generator, factor: float) -> Training:
    """Draw one training of a shape."""
    gain = random.uniform(0.2, 0.6)
    jitter = JITTER * random.normal(size=EVALUATIONS)
    true = 0.3 + gain * (SHAPES[shape](random) + jitter)
    rows = ROW_DIFFICULTY * random.normal(size=ROWS)
    own = ROW_ERROR * _alike(random, ROWS) + DAY_ERROR * _alike(random, DAYS)[:, BLOCKS.index]
    losses = true[:, None] + rows + factor * own
    sample = random.choice(ROWS, SAMPLED_ROWS, replace=False)
    return Training(true, losses, losses[:, sample].mean(axis=1))


def _alike(random: np.random.Generator, width: int) -> Floats:
    """Standard normal columns in which each row resembles the one before, [evaluations, width]."""
    drawn = random.normal(size=(EVALUATIONS, width))
    for index in range(1, EVALUATIONS):
        drawn[index] *= math.sqrt(1 - LIKENESS**2)
        drawn[index] += LIKENESS * drawn[index - 1]
    return drawn


@dataclass(frozen=True)
class Retrospective:
    """Our choice among what the engine's retention keeps."""

    task: Task
    tolerance: float
    by_curve: bool = True

    def __call__(self, training: Training) -> int:
        """Index of the checkpoint that is shipped."""
        retention = Retention(Checkpoints().keep_best, None, "loss", "minimize")
        measured = {step: {"loss": value} for step, value in enumerate(training.sampled.tolist())}
        kept = retention.choose(measured)
        candidates = [
            Candidate(
                CheckpointRecord(step=step, uri=str(step), metrics=measured[step], kept_as=why),
                _scored(training.losses[step]),
            )
            for step, why in kept.items()
        ]
        points = [
            EvaluationPoint(step=step * STEPS_BETWEEN, train_loss=None, metrics=figures)
            for step, figures in measured.items()
        ]
        chosen = select(
            self.task, candidates, BLOCKS,
            metric="loss", tolerance=self.tolerance, limits={},
            improving=self.by_curve and is_still_improving(points, "loss", "minimize"),
        )  # fmt: skip
        return chosen.chosen.step


def _scored(losses: Floats) -> Scored:
    nothing = np.zeros(ROWS)
    return Scored(losses, nothing, nothing, np.ones(ROWS), pl.DataFrame({"label": nothing}))


def any_task() -> Task:
    """`select` asks one for its metrics; here the loss alone counts."""
    columns = TaskColumns(label="label", features={"x": "Float64"})
    task = load_task("perennial.tasks.tabular:TabularRegression", {}, columns)
    task.load_state(
        {"numeric": {}, "categories": {}, "classes": [], "class_shares": [],
         "target_mean": 0.0, "target_scale": 1.0, "rows": ROWS}
    )  # fmt: skip
    return task


OURS = "ours"
TO_BEAT = ("last", "raw best", "patience 3", "patience 10")
Rule = Callable[[Training], int]


def rules(task: Task) -> dict[str, Rule]:
    """The ways of choosing, ours first."""
    return {
        OURS: Retrospective(task, DEFAULT),
        "one standard error, earlier": Retrospective(task, 1.0, by_curve=False),
        "ours, tolerance 1": Retrospective(task, 1.0),
        "best of all rows": Retrospective(task, 0.0, by_curve=False),
        "last": lambda training: EVALUATIONS - 1,
        "raw best": lambda training: int(np.argmin(training.sampled)),
        "patience 3": lambda training: early_stop((-training.sampled).tolist(), 3)[0],
        "patience 10": lambda training: early_stop((-training.sampled).tolist(), 10)[0],
    }


def regrets(named: dict[str, Rule], trainings: int, factor: float) -> dict[str, dict[str, Floats]]:
    """Shape → rule → regret of each training, on the same trainings for all rules."""
    found: dict[str, dict[str, Floats]] = {}
    for number, shape in enumerate(SHAPES):
        random = np.random.default_rng((number, round(1000 * factor)))
        drawn = [train(shape, random, factor) for _ in range(trainings // len(SHAPES))]
        found[shape] = {
            name: np.array([t.true[rule(t)] - t.true.min() for t in drawn])
            for name, rule in named.items()
        }
    return found


def margin(values: Floats) -> float:
    """Half of the 95% interval of a mean."""
    return 1.96 * float(values.std(ddof=1)) / math.sqrt(len(values))


def pooled(found: dict[str, dict[str, Floats]], name: str) -> Floats:
    """A rule's regrets over all shapes."""
    return np.concatenate([by_rule[name] for by_rule in found.values()])


def table(named: Sequence[str], found: dict[str, dict[str, Floats]]) -> Iterator[str]:
    """Mean regret, in thousandths: by rule and shape, and what each rule loses against ours."""
    yield f"| rule | all shapes | {' | '.join(found)} | more than ours |"
    yield f"|---|{'---:|' * (len(found) + 2)}"
    ours = pooled(found, OURS)
    for name in named:
        every = pooled(found, name)
        shapes = " | ".join(f"{1e3 * by[name].mean():.1f}" for by in found.values())
        more = every - ours
        versus = "" if name == OURS else f"{1e3 * more.mean():+.2f} ± {1e3 * margin(more):.2f}"
        mean = f"{1e3 * every.mean():.2f} ± {1e3 * margin(every):.2f}"
        yield f"| {name} | {mean} | {shapes} | {versus} |"


def verdicts(named: Sequence[str], found: dict[str, dict[str, Floats]]) -> Iterator[str]:
    """Whether ours gives away at most as much as what it must beat, in every shape and over all."""
    settings = {"all shapes": {name: pooled(found, name) for name in named}} | found
    behind = [
        f"{label}: {1e3 * by[OURS].mean():.2f} against {1e3 * by[name].mean():.2f} of {name} "
        f"(± {1e3 * margin(by[OURS] - by[name]):.2f})"
        for label, by in settings.items()
        for name in TO_BEAT
        if by[OURS].mean() > by[name].mean()
    ]
    reached = "reached" if not behind else f"missed in {len(behind)}"
    yield (
        f"Ours ≤ {', '.join(TO_BEAT)} over all shapes and in each, {len(settings) * len(TO_BEAT)} "
        f"comparisons: **{reached}**."
    )
    yield from (f"- {each}" for each in behind)


def picture(named: Sequence[str], found: dict[str, dict[str, Floats]]) -> str:
    """Which share of the trainings gives away at most so much, for each rule."""
    limits = np.linspace(0.0, LARGEST_DRAWN, 101)
    lines = {
        name: [(1e3 * limit, float((pooled(found, name) <= limit).mean())) for limit in limits]
        for name in named
    }
    return line_chart(lines, x_label="regret, thousandths of loss", y_label="share of trainings")


def main() -> None:
    """Simulate at every size of the error; print the tables, draw the picture of the middle one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainings", type=int, default=1000)
    parser.add_argument("--write", action="store_true", help="keep the results")
    options = parser.parse_args()
    started = time.process_time()
    named = rules(any_task())
    measured = {factor: regrets(named, options.trainings, factor) for factor in ERROR_FACTORS}
    lines = []
    for factor, found in measured.items():
        lines += ["", f"## Errors of the checkpoints times {factor:g}", ""]
        lines += [*table(list(named), found), "", *verdicts(list(named), found)]
    print("\n".join(lines))
    if options.write:
        head = [
            f"# What ways of choosing a checkpoint give away ({date.today()})", "",
            f"{platform.machine()}, Python {platform.python_version()}, "
            f"{time.process_time() - started:.0f} s CPU; `python -m benchmarks.selection_regret "
            f"--trainings {options.trainings} --write`", "",
            f"Mean regret in thousandths of loss ± 95%, {options.trainings:,} trainings per size "
            "of the error; a training gains 200 to 600.", "",
            "![expected regret by rule](selection_regret.svg)", "",
            "The picture shows errors times 1: the share of trainings that give away at most so "
            "much.",
        ]  # fmt: skip
        keep_page("selection_regret.md", "\n".join(head + lines) + "\n")
        drawing = standalone(picture(list(named), measured[1.0]))
        result_file("selection_regret.svg").write_text(drawing)


def standalone(svg: str) -> str:
    """Return a chart as a file of its own, in the colors of a page, light and dark."""
    inner = checked_svg(svg).removeprefix("<svg")
    rules = escape((TEMPLATES / "page.css").read_text(encoding="utf-8"), quote=False)
    opening, _, rest = inner.partition(">")
    style = f"<style>{rules}svg{{font-family:sans-serif}}</style>"
    return f'<svg xmlns="http://www.w3.org/2000/svg"{opening}>{style}{rest}\n'


if __name__ == "__main__":
    main()
