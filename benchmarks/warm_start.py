"""Warm start against scratch, month by month: loss of the next month, steps saved.

    python -m benchmarks.warm_start flights DATA [--months 1-11] [--seeds 2] [--steps 300] [--write]
    python -m benchmarks.warm_start text DATA --months 4-8 [--window 1] [--write]

DATA holds the partitions that the example's `prepare.py` writes, one for each month. Each month is
trained on with all before it, or with the last ones alone (`--window`), from random weights and
from the model of the month before, in as many steps and in a third of them. All are scored on the
whole next month, which none has seen. Differences are paired by row and averaged by day; their
interval is that of a mean over days (Student's t, 95%), because flights of one day are alike. For
text, losses count by byte, and the model is a smaller one than the example's.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import stats

from benchmarks.record import ROOT, keep_page
from perennial.clients.object_store import open_store
from perennial.contract import Contract, load_contract
from perennial.contracts.initial_model import FOLDER, FormerTask, InitialModel, Origin
from perennial.contracts.training import TrainingResult
from perennial.engine.checkpoints.checkpointer import load_checkpoint_model
from perennial.engine.config.training import TrainingSection
from perennial.engine.evaluation.scoring import score_in_parts
from perennial.engine.export import WEIGHTS_FILE, write_weights
from perennial.engine.job import TrainingJob
from perennial.snapshot_data.manifest import take_snapshot

EVALUATIONS = 12
STEPS = 300
SMALLER = {
    "flights": ({}, {}),
    "text": ({"width": 64, "layers": 2, "heads": 2}, {"evaluation_rows": 256}),
}
"""Example → what departs from its contract in `model.options` and `training`."""
WAYS = ("scratch", "warm start", "warm start, a third of the steps")


@dataclass(frozen=True)
class Trained:
    """One training.

    Attributes:
        result: What the engine wrote.
        losses: Of each row of the next month.
        weights: How much each of these rows counts: its bytes, or 1.
        days: Of each row of the next month.
    """

    result: TrainingResult
    losses: NDArray[np.float64]
    weights: NDArray[np.float64]
    days: NDArray[np.int64]

    def mean(self) -> float:
        """Return the mean loss of the next month."""
        return float(np.average(self.losses, weights=self.weights))


def train(
    contract: Contract, folder: Path, section: TrainingSection, initial: InitialModel | None
) -> TrainingResult:
    """Train in one process of its own on the snapshot beside the folder."""
    folder.mkdir(parents=True)
    job = TrainingJob(
        fingerprint=folder.name,
        snapshot=str(folder.parent / "snapshot"),
        model=contract.model,
        training=section,
        initial=initial,
        num_processes=1,
        folder=str(folder),
    )
    (folder / "job.json").write_text(job.to_json())
    environment = {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
        "PERENNIAL_RENDEZVOUS": str(folder / "rendezvous"), "OMP_NUM_THREADS": "1",
        "PERENNIAL_CACHE": str(folder.parent.parent / "cache"),
    }  # fmt: skip
    module = ["-m", "perennial.engine.worker", str(folder / "job.json")]
    subprocess.run([sys.executable, *module], env=os.environ | environment, check=True)
    return TrainingResult.read(folder)


def score(result: TrainingResult, rows: pl.DataFrame, time: str) -> Trained:
    """Score the last weights on rows."""
    task, model = load_checkpoint_model(result.checkpoints[-1].uri, result)
    found = score_in_parts(task, model, task.encode(rows))
    return Trained(result, found.losses, found.weights, rows[time].dt.ordinal_day().to_numpy())


def stored(result: TrainingResult, store: Path) -> InitialModel:
    """Keep the last weights as a run pins those of a champion."""
    _, model = load_checkpoint_model(result.checkpoints[-1].uri, result)
    digest = write_weights(model, store)
    open_store(str(store)).upload(f"{FOLDER}/{digest}.safetensors", store / WEIGHTS_FILE)
    return InitialModel(
        origin=Origin(source="champion", uri=str(store), files={WEIGHTS_FILE: digest}),
        store_uri=str(store),
        former=FormerTask(
            task=result.task,
            options=result.options,
            columns=result.columns,
            state=result.task_state,
        ),
    )


def run_months(
    contract: Contract, files: list[Path], folder: Path, first: int, window: int | None
) -> Iterator[dict[str, Trained]]:
    """Yield each month's trainings; a warm start follows that of the month before.

    The first month has random weights alone, where all warm starts begin.
    """
    before: dict[str, InitialModel] = {}
    steps, seed = contract.training.steps, contract.training.seed
    for month in range(first, len(files)):
        place = folder / f"{seed}-{month}"
        data = place / "data"
        data.mkdir(parents=True)
        for number, file in enumerate(files[max(month - (window or month), 0) : month]):
            shutil.copyfile(file, data / f"{number:02}.parquet")
        section = contract.data.model_copy(update={"uri": str(data)})
        take_snapshot(section, contract.split).write(place / "snapshot")
        following, found = pl.read_parquet(files[month]), dict[str, Trained]()
        following = following.drop_nulls(contract.data.label)
        for number, way in enumerate(WAYS if before else WAYS[:1]):
            length = steps // 3 if way == WAYS[2] else steps
            changes = {
                "steps": length, "strategy": "single",
                "evaluate_every_steps": max(length // EVALUATIONS, 1),
            }  # fmt: skip
            values = contract.training.model_dump(mode="json") | changes
            training = TrainingSection.model_validate(values, strict=False)
            result = train(contract, place / f"job-{number}", training, before.get(way))
            found[way] = score(result, following, str(contract.data.time))
            if way != "scratch":
                before[way] = stored(result, folder / f"store-{seed}-{number}")
            elif not before:
                start = stored(result, folder / f"store-{seed}")
                before = dict.fromkeys(WAYS[1:], start)
            print(seed, month, way, f"{found[way].mean():.4f}", flush=True)
        if month > first:
            yield found


def gain(found: dict[str, Trained], way: str) -> tuple[float, float]:
    """Return how much lower a way's loss is than that of scratch: the mean over days, ± 95%."""
    differences = found["scratch"].losses - found[way].losses
    days, weights = found[way].days, found[way].weights
    of_days = [days == day for day in np.unique(days)]
    means = np.array([np.average(differences[day], weights=weights[day]) for day in of_days])
    spread = stats.t.ppf(0.975, len(means) - 1) * means.std(ddof=1) / len(means) ** 0.5
    return float(means.mean()), float(spread)


def steps_saved(found: dict[str, Trained]) -> float:
    """Return the share of steps after which a warm start is as good as scratch at its end.

    On the validation sample; 0 if it never is.
    """
    scratch, warm = (found[way].result for way in WAYS[:2])
    last = scratch.evaluations[-1].metrics["loss"]
    reached = [each.step for each in warm.evaluations if each.metrics["loss"] <= last]
    return 1.0 - reached[0] / warm.steps if reached else 0.0


def table(months: list[dict[str, Trained]], seeds: int, first: int) -> Iterator[str]:
    """Yield the lines of the page."""
    per_seed = len(months) // seeds
    yield f"| month | scratch | {' | '.join(WAYS[1:])} | steps saved |"
    yield "| ---: | ---: | ---: | ---: | ---: |"
    for place in range(per_seed):
        same = months[place::per_seed]
        cells = []
        for way in WAYS[1:]:
            pairs = [gain(found, way) for found in same]
            mean = np.mean([pair[0] for pair in pairs])
            cells.append(f"{mean:+.4f} ± {np.mean([pair[1] for pair in pairs]):.4f}")
        base = np.mean([found["scratch"].mean() for found in same])
        saved = np.mean([steps_saved(found) for found in same])
        yield f"| {place + first + 1} | {base:.4f} | {' | '.join(cells)} | {saved:.0%} |"
    for way in WAYS[1:]:
        every = np.array([gain(found, way)[0] for found in months])
        better = sum(value > 0 for value in every)
        lower = f"lower in {better} of {len(every)}"
        yield f"\n{way.capitalize()}: {every.mean():+.4f} on average, {lower}."


def choose(example: str, steps: int, seed: int) -> Contract:
    """Return the example's contract for so many steps."""
    contract = load_contract(ROOT / "examples" / example / "contract.toml")
    options, training = SMALLER[example]
    values = contract.training.model_dump(mode="json") | training | {"steps": steps, "seed": seed}
    changes = {
        "model": contract.model.model_copy(update={"options": contract.model.options | options}),
        "training": TrainingSection.model_validate(values, strict=False),
    }
    return contract.model_copy(update=changes)


def month_range(text: str) -> tuple[int, int]:
    """Return the first and last month of `4-8`."""
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def main() -> None:
    """Compare the ways, month by month."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("example", choices=SMALLER)
    parser.add_argument("data", type=Path, help="folder with one partition for each month")
    parser.add_argument("--months", type=month_range, default="1-11", help="to train up to")
    parser.add_argument("--window", type=int, help="months to train on; all if absent")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--write", action="store_true", help="write the page of results")
    arguments = parser.parse_args()
    first, last = arguments.months
    files = sorted(arguments.data.resolve().rglob("*.parquet"))[: last + 1]
    with tempfile.TemporaryDirectory() as place:
        months = [
            found
            for seed in range(1, arguments.seeds + 1)
            for found in run_months(
                choose(arguments.example, arguments.steps, seed), files, Path(place), first,
                arguments.window,
            )
        ]  # fmt: skip
        lines = list(page(arguments, months))
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.write:
        keep_page(page_name(arguments), text)


def page_name(arguments: argparse.Namespace) -> str:
    """Return the name of the page of results."""
    example = "" if arguments.example == "flights" else f"_{arguments.example}"
    window = f"_last_{arguments.window}" if arguments.window else ""
    steps = "" if arguments.steps == STEPS else f"_{arguments.steps}_steps"
    return f"warm_start{example}{window}{steps}.md"


def page(arguments: argparse.Namespace, months: list[dict[str, Trained]]) -> Iterator[str]:
    """Yield the lines of the page of results."""
    data = f"the last {arguments.window} alone" if arguments.window else "all months so far"
    yield "# Warm start against scratch, month by month"
    yield ""
    yield (
        f"{arguments.example.capitalize()}, {arguments.steps} steps, seeds: {arguments.seeds}, "
        f"trained on {data}. Loss of the next month from random weights; how much lower it is with "
        "a warm start (95% interval over days); share of the steps that a warm start saves to "
        "reach scratch's validation loss."
    )
    yield ""
    yield from table(months, arguments.seeds, arguments.months[0])


if __name__ == "__main__":
    main()
