"""How often is a study's verdict wrong, and how far from the best are the values that it finds?

    python -m benchmarks.study_decisions [--repetitions 200]
    python -m benchmarks.study_decisions --record CONTRACT STUDY_FILE

The truth is known: a surrogate surface, a Gaussian process fitted to the trials of a real study
(study_worlds.json), says what each point of the space is worth on all possible rows and seeds.
Trials and confirmations are drawn around it, with the variance between seeds, between blocks of
test rows and within them that the real confirmations had. Sampling, choice of finalists, intervals
and verdict are those of the product.

`--record` adds a study that `perennial study run` has finished to study_worlds.json.
"""

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

from benchmarks.record import keep_figures, keep_page
from perennial.contracts.study import Confirmed
from perennial.engine.evaluation.resampling import Blocks
from perennial.studies.analysis.confirmation import HeldOutRows, Measured, compare_candidates
from perennial.studies.analysis.search import Search, finalists
from perennial.studies.config import StudySection
from perennial.studies.records import StudyPlan, Trial, TrialTraining
from perennial.studies.sampling import propose, space_of

Floats = NDArray[np.float64]
WORLDS = Path(__file__).with_name("study_worlds.json")
BUDGETS = (8, 16, 32, 64)
CONFIRMATIONS = (3, 5, 10)
RESAMPLES = 400
CONFIDENCE = 0.95
DENSE = 1024  # points among which the best of a surface is looked for
FOLLOWERS = 5  # TPE learns for each trial: so many times fewer repetitions
SAMPLERS: dict[str, dict[str, Any]] = {
    "quasi_random": {"sampler": "quasi_random"},
    "random": {"sampler": "random"},
    "grid": {"sampler": "grid"},
    "tpe": {"sampler": "tpe"},
    "two stages": {"sampler": "quasi_random", "exploit": "tpe"},
}


@dataclass(frozen=True)
class Spread:
    """Standard deviations of confirmations, in the metric's unit.

    Attributes:
        between_seeds: Of a training's true value between seeds.
        between_blocks: Between blocks, of what all seeds of a candidate share.
        within: Of one training's own errors from block to block.
    """

    between_seeds: float = 1.0
    between_blocks: float = 1.0
    within: float = 1.0


def made_rows(blocks: int, resamples: int = RESAMPLES) -> HeldOutRows:
    """Return test rows of independent blocks."""
    found = Blocks(np.arange(blocks), blocks, "group")
    return HeldOutRows(found, found.draws(resamples))


def made_candidates(
    true: Sequence[float],
    rows: HeldOutRows,
    generator: np.random.Generator,
    *,
    seeds: int = 3,
    spread: Spread | None = None,
) -> list[Measured]:
    """Return confirmations of candidates, of which the first is the baseline.

    Args:
        true: The value of each on all possible rows, its mean over all possible seeds.
        rows: The test rows.
        generator: Draws everything.
        seeds: Confirmations of each.
        spread: Of the confirmations.
    """
    spread, count = spread or Spread(), rows.blocks.count
    shared = generator.standard_normal(count)  # blocks are harder or easier for all
    found = []
    for number, value in enumerate(true):
        own = shared + spread.between_blocks * generator.standard_normal(count)
        trained = value + spread.between_seeds * generator.standard_normal(seeds)
        errors = spread.within * generator.standard_normal((seeds, count))
        by_block = trained[:, None] + own + errors
        means = by_block.mean(axis=1)
        draws = by_block @ rows.draws.T / rows.draws.sum(axis=1)
        found.append(Measured(number, means, draws, by_block - means[:, None]))
    return found


@dataclass(frozen=True)
class World:
    """A surface fitted to the trials of a real study; higher is better.

    Attributes:
        section: The study's section, without scientific roles: every dimension is a nuisance.
        points: Values of the trials.
        values: Their signed values.
        spread: Of its confirmations.
        noise: Standard deviation of a trial's value between seeds.
        blocks: Blocks of its test rows.
    """

    name: str
    section: StudySection
    points: list[dict[str, Any]]
    values: Floats
    spread: Spread
    noise: float
    blocks: int

    @cached_property
    def plan(self) -> StudyPlan:
        """Return the plan that its points are read by."""
        return self.planned(8, {"sampler": "quasi_random"}, self.points[0])

    def planned(self, trials: int, how: dict[str, Any], baseline: dict[str, Any]) -> StudyPlan:
        """Return a study of the world's space with a budget, a sampler and a baseline."""
        changes: dict[str, Any] = {"trials": trials, "sampler": how["sampler"], "parallel": 1}
        if "exploit" in how:
            second = {"trials": trials // 2, "sampler": how["exploit"]}
            changes |= {"trials": trials - trials // 2, "exploit": second}
        fields = self.section.model_dump(mode="json") | changes
        if how["sampler"] == "grid":
            ranges = [each for each in fields["nuisance"].values() if not each["choices"]]
            others = math.prod(
                len(each["choices"]) for each in fields["nuisance"].values() if each["choices"]
            )
            points = max(2, int((trials / others) ** (1.0 / max(len(ranges), 1))))
            for each in ranges:
                each["grid_points"] = points
        section = StudySection.model_validate_json(json.dumps(fields))
        return StudyPlan(
            model=self.name,
            study=section,
            contract={},
            baseline=baseline,
            metric="value",
            direction="maximize",
            snapshot="",
            code="",
        )

    def encode(self, points: Sequence[dict[str, Any]]) -> Floats:
        """Return points as coordinates: places in ranges, and one column for each choice."""
        search = Search.of(self.plan, [])
        columns = []
        for option, axis in search.axes.items():
            if option in search.ranges:
                columns.append([axis.position(point[option]) for point in points])
            else:
                for choice in axis.dimension.choices or ():
                    columns.append([0.5 * (point[option] == choice) for point in points])
        return np.array(columns, dtype=np.float64).T

    @cached_property
    def surface(self) -> Callable[[Sequence[dict[str, Any]]], Floats]:
        """Return the fitted surface."""
        centre, scale = float(self.values.mean()), float(self.values.std())
        # Smooth over half of a range; the trials' noise is not taken for the surface.
        noise = max((self.noise / scale) ** 2, 1e-3) if scale else 1.0
        process = GaussianProcessRegressor(RBF(0.5), alpha=noise, optimizer=None)
        process.fit(self.encode(self.points), (self.values - centre) / (scale or 1.0))
        return lambda points: centre + scale * process.predict(self.encode(points))

    @cached_property
    def dense(self) -> tuple[list[dict[str, Any]], Floats]:
        """Return many points of the space, with their true values."""
        plan = self.planned(DENSE, {"sampler": "quasi_random"}, self.points[0])
        points = [propose(plan, number, []) for number in range(1, DENSE + 1)]
        # A grid has the ends of all ranges, which quasi-random points only come near.
        points += space_of(self.planned(DENSE, {"sampler": "grid"}, self.points[0])).grid()
        return points, self.surface(points)

    @property
    def best(self) -> dict[str, Any]:
        """Return the best point."""
        points, values = self.dense
        return points[int(values.argmax())]

    @property
    def median(self) -> dict[str, Any]:
        """Return a point of median value."""
        points, values = self.dense
        return points[int(np.argsort(values)[len(values) // 2])]


def flat(world: World) -> World:
    """Return the world in which nothing has an effect."""
    return replace(world, name=f"{world.name}, flat", values=np.zeros_like(world.values))


def search(world: World, plan: StudyPlan, generator: np.random.Generator) -> list[Trial]:
    """Run the search of a study in a world."""
    trials: list[Trial] = []
    is_flat = not world.values.any()
    last = plan.last_search
    if plan.study.sampler == "grid":
        last = min(last, len(space_of(plan).grid()))  # the largest grid within the budget
    for number in range(last + 1):
        needed = set(plan.needed(number))
        values = propose(plan, number, [each for each in trials if each.number in needed])
        true = 0.0 if is_flat else float(world.surface([values])[0])
        value = true + world.noise * generator.standard_normal()
        training = TrialTraining(seed=0, fingerprint="", value=value)
        trials.append(
            Trial(
                number=number,
                stage=plan.stage_of(number),
                values=values,
                state="complete",
                value=value,
                trainings=(training,),
            )
        )
    return trials


def judged(
    world: World, plan: StudyPlan, trials: list[Trial], seeds: int, generator: np.random.Generator
) -> tuple[tuple[Confirmed, ...], list[float]]:
    """Confirm the finalists; return the comparisons and the true improvements."""
    chosen = [0, *_spread_finalists(plan, trials)]
    points = [trials[number].values for number in chosen]
    true = [0.0] * len(points) if not world.values.any() else list(world.surface(points))
    rows = made_rows(world.blocks)
    baseline, *rivals = made_candidates(true, rows, generator, seeds=seeds, spread=world.spread)
    pairs = [(each, baseline) for each in rivals]
    found = compare_candidates(pairs, rows, sign=1.0, confidence=CONFIDENCE)
    return found, [value - true[0] for value in true[1:]]


def _spread_finalists(plan: StudyPlan, trials: list[Trial]) -> tuple[int, ...]:
    """Return the finalists: the best trial, and two more as scientific values would add."""
    ranked = Search.of(plan, trials).ranked
    others = [trial.number for trial in ranked if trial.number]
    return tuple(dict.fromkeys([*finalists(plan, trials), *others[1:3]]))


def measure(worlds: Sequence[World], repetitions: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each world, baseline, budget and number of confirmations."""
    for world in [*worlds, flat(worlds[0])]:
        for baseline in ("best", "median"):
            if baseline == "median" and not world.values.any():
                continue
            point = world.points[0] if not world.values.any() else getattr(world, baseline)
            for budget in BUDGETS:
                yield from simulate(world, (baseline, point), budget, repetitions)


def simulate(
    world: World, baseline: tuple[str, dict[str, Any]], budget: int, repetitions: int
) -> Iterator[dict[str, Any]]:
    """Yield a row for each number of confirmations, of studies with one baseline and budget."""
    counts: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    optimism = []
    for repetition in range(repetitions):
        name = f"{world.name} {baseline[0]}".encode()
        generator = np.random.default_rng([budget, repetition, *name])
        plan = world.planned(budget, SAMPLERS["quasi_random"], baseline[1])
        plan = plan.model_copy(update={"study": plan.study.model_copy(update={"seed": repetition})})
        trials = search(world, plan, generator)
        for seeds in CONFIRMATIONS:
            found, true = judged(world, plan, trials, seeds, generator)
            tally = counts[seeds]
            tally["all"] += 1
            tally["held"] += all(
                each.improvement is not None
                and each.improvement.low <= value <= each.improvement.high
                for each, value in zip(found, true, strict=True)
            )
            adopted = [
                (each.improvement.estimate if each.improvement else 0.0, value)
                for each, value in zip(found, true, strict=True)
                if each.decision == "adopt"
            ]
            tally["adopted"] += bool(adopted)
            tally["wrong"] += bool(adopted) and bool(max(adopted)[1] <= 0.0)
        first = trials[finalists(plan, trials)[0]]
        shown = (first.value or 0.0) - (trials[0].value or 0.0)
        optimism.append(shown - true[0])
    for seeds, tally in counts.items():
        yield {
            "world": world.name,
            "baseline": baseline[0],
            "trials": budget,
            "confirmations": seeds,
            "studies": tally["all"],
            "adopted": tally["adopted"] / tally["all"],
            "wrong": int(tally["wrong"]) / tally["all"],
            "held": tally["held"] / tally["all"],
            "optimism": float(np.mean(optimism)),
        }


def regrets(worlds: Sequence[World], repetitions: int) -> Iterator[dict[str, Any]]:
    """Yield each sampler's mean regret: how much the chosen values lack of the best.

    As a share of the distance between the median point of the space and the best one.
    """
    for world in worlds:
        top, middle = (float(world.surface([each])[0]) for each in (world.best, world.median))
        for name, how in SAMPLERS.items():
            follows = "tpe" in how.values()
            count = max(1, repetitions // FOLLOWERS) if follows else repetitions
            row: dict[str, Any] = {"world": world.name, "sampler": name, "studies": count}
            for budget in BUDGETS:
                lacking = []
                for repetition in range(count):
                    generator = np.random.default_rng([budget, repetition, 1])
                    plan = world.planned(budget, how, world.median)
                    study = plan.study.model_copy(update={"seed": repetition})
                    plan = plan.model_copy(update={"study": study})
                    trials = search(world, plan, generator)
                    chosen = trials[finalists(plan, trials)[0]].values
                    lacking.append((top - float(world.surface([chosen])[0])) / (top - middle))
                row[str(budget)] = float(np.mean(lacking))
            yield row


def read_worlds(path: Path = WORLDS) -> list[World]:
    """Read the recorded studies."""
    found = []
    for name, each in json.loads(path.read_text()).items():
        section = StudySection.model_validate_json(json.dumps(each["study"]))
        found.append(
            World(
                name,
                section,
                [trial["values"] for trial in each["trials"]],
                np.array([trial["value"] for trial in each["trials"]]),
                Spread(**each["spread"]),
                each["noise"],
                each["blocks"],
            )
        )
    return found


def record(contract: Path, study: Path) -> None:
    """Add a finished study to the file of worlds."""
    from perennial.clients.object_store import open_store  # noqa: PLC0415 - only to record
    from perennial.data.dataset import Dataset  # noqa: PLC0415
    from perennial.runs import Home  # noqa: PLC0415
    from perennial.studies.analysis.noise import measure_noise  # noqa: PLC0415
    from perennial.studies.conclusion import read_trials  # noqa: PLC0415
    from perennial.studies.judgement import confirmations_of, measure_confirmations  # noqa: PLC0415
    from perennial.study_commands.stored import find_study  # noqa: PLC0415

    store = open_store(Home(contract.resolve().parent / ".perennial").store_uri)
    _, stored = find_study(store, contract, study, "")
    plan, trials = stored.plan, read_trials(stored.store, stored.plan)
    searched = Search.of(plan, trials)
    confirmed = confirmations_of(plan, trials)
    measured = measure_confirmations(
        plan, confirmed, Dataset(stored.snapshot), stored.store, RESAMPLES
    )
    known = [
        trial
        for trial in searched.usable
        if all(
            scale.position(trial.values.get(name)) <= 1.0 for name, scale in searched.ranges.items()
        )
    ]
    nuisance = {
        name: axis.dimension.model_dump(mode="json") for name, axis in searched.axes.items()
    }
    noise = measure_noise(searched, trials).deviation or 0.0
    worlds = json.loads(WORLDS.read_text()) if WORLDS.exists() else {}
    worlds[plan.model] = {
        "study": {"goal": plan.study.goal, "nuisance": nuisance},
        "trials": [
            {"values": trial.values, "value": round(searched.sign * (trial.value or 0.0), 6)}
            for trial in known
        ],
        "noise": noise,
        "blocks": measured.rows.blocks.count,
        "spread": vars(_spread_of(list(measured.candidates.values()))),
    }
    WORLDS.write_text(json.dumps(worlds, indent=1) + "\n")


def _spread_of(candidates: list[Measured]) -> Spread:
    """Estimate the standard deviations of real confirmations."""
    blocks = candidates[0].influences.shape[1]
    within, seeds, shared = [], [], []
    for each in candidates:
        own = each.influences - each.influences.mean(axis=0)
        within.append(float((own**2).sum()) / ((each.seeds - 1) * (blocks - 1)))
        seeds.append(float(each.values.var(ddof=1)) - within[-1] / blocks)
    for each in candidates[1:]:
        apart = each.influences.mean(axis=0) - candidates[0].influences.mean(axis=0)
        shared.append((float(apart.var(ddof=1)) - 2.0 * within[0] / each.seeds) / 2.0)
    roots = (math.sqrt(max(float(np.mean(found)), 0.0)) for found in (seeds, shared, within))
    return Spread(*roots)


def _names(rows: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["world"] for row in rows))


def _pooled(rows: Sequence[dict[str, Any]], name: str) -> float:
    """Return the mean of a share over rows, each with as many votes as it has studies."""
    whole = sum(row["studies"] for row in rows)
    return float(sum(row[name] * row["studies"] for row in rows)) / whole


def page(decisions: list[dict[str, Any]], lacking: list[dict[str, Any]]) -> str:
    """Return the page of results."""
    wrong = {
        budget: _pooled([row for row in decisions if row["trials"] == budget], "wrong")
        for budget in BUDGETS
    }
    groups = [(world, seeds) for world in _names(decisions) for seeds in CONFIRMATIONS]
    held = {
        group: _pooled(
            [row for row in decisions if (row["world"], row["confirmations"]) == group], "held"
        )
        for group in groups
    }
    studies = sum(row["studies"] for row in decisions)
    lines = [
        "# Decisions of studies with a known truth",
        "",
        f"{studies:,} simulated studies. Wrong adoptions: "
        + ", ".join(f"{share:.1%} at {budget} trials" for budget, share in wrong.items())
        + f"; {max(row['wrong'] for row in decisions):.1%} in the worst line below. The intervals "
        f"of three finalists are meant to hold together in 95%: {_pooled(decisions, 'held'):.1%} "
        f"do, {min(held.values()):.1%} to {max(held.values()):.1%} by world and number of "
        "confirmations.",
        "Surfaces and variances are those of real studies (study_worlds.json); see "
        "`benchmarks/study_decisions.py`.",
        "",
        "## Verdicts",
        "Where the baseline is the best point, every adoption is wrong. Optimism: by what the best "
        "trial's improvement is too good, as the search shows it on validation rows.",
        "",
        "| world | baseline | trials | confirmations | adopted | wrong | hold | optimism |",
        "| --- | --- | --: | --: | --: | --: | --: | --: |",
    ]
    lines += [
        f"| {row['world']} | {row['baseline']} | {row['trials']} | {row['confirmations']} | "
        f"{row['adopted']:.1%} | {row['wrong']:.1%} | {row['held']:.1%} | {row['optimism']:.2g} |"
        for row in decisions
    ]
    budgets = " | ".join(f"{budget} trials" for budget in BUDGETS)
    lines += [
        "",
        "## Regret",
        "What the values that the search chose lack of the best, as a share of the distance from "
        "the space's median point to its best one.",
        "",
        f"| world | sampler | studies | {budgets} |",
        f"| --- | --- | --: |{' --: |' * len(BUDGETS)}",
    ]
    for row in lacking:
        cells = " | ".join(f"{row[str(budget)]:.3f}" for budget in BUDGETS)
        lines.append(f"| {row['world']} | {row['sampler']} | {row['studies']} | {cells} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Simulate, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--record", nargs=2, type=Path, metavar=("CONTRACT", "STUDY_FILE"))
    options = parser.parse_args()
    if options.record:
        record(*options.record)
        return
    worlds = read_worlds()
    decisions = list(measure(worlds, options.repetitions))
    lacking = list(regrets(worlds, options.repetitions))
    keep_page("study_decisions.md", page(decisions, lacking))
    keep_figures("study_decisions.json", {"decisions": decisions, "regrets": lacking})


if __name__ == "__main__":
    main()
