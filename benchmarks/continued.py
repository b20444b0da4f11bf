"""Trainings that are continued on other resources, and for more steps, beside uninterrupted ones.

    python -m benchmarks.continued [--steps 400] [--write]

A training of 2 processes under FSDP is stopped by SIGTERM after its first checkpoint, and continued
by 1, 3 and 4 processes, and by 2 under DDP. Another one is finished at half of the steps, and then
extended. Every process records the rows of its updates: they must be those of a training that was
never interrupted, in order. Losses may differ by the order in which processes add up; the model has
no dropout.
"""

import argparse
import contextlib
import io
import os
import signal
import struct
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from typing_extensions import override

from benchmarks.record import keep_page
from benchmarks.streaming import write_table
from perennial.contracts.data import ModelSection
from perennial.contracts.environment import RUN_FOLDER
from perennial.contracts.training import TrainingResult
from perennial.contracts.user_code import RunStopped
from perennial.engine.checkpoints.folder import committed
from perennial.engine.config.training import TrainingSection
from perennial.engine.data.batching import BatchPlan
from perennial.engine.task import Batch
from perennial.tasks.tabular import TabularClassification
from perennial.train_model.step import train_model_step
from perennial.training_jobs.config import ResourcesSection, TrainModelConfig

ROOT = Path(__file__).resolve().parent.parent
RECORDS = "BENCHMARK_RECORDS"
# Without dropout, whose masks each rank draws for itself.
MODEL = ModelSection(name="rows", task="benchmarks.continued:Recorded", options={"dropout": 0.0})
ROWS, GLOBAL, MICRO, EVERY = 60_000, 240, 60, 20
WAYS = {"1 process": (1, "single"), "3 processes, FSDP": (3, "fsdp"),
        "4 processes, FSDP": (4, "fsdp"), "2 processes, DDP": (2, "ddp")}  # fmt: skip


# The result, and the rows of the attempt's updates [U, B].
Trained: TypeAlias = tuple[TrainingResult, np.ndarray[Any, Any]]


class Recorded(TabularClassification):
    """Classification that records the rows of each forward pass, by a number of theirs."""

    @override
    def augment(self, batch: Batch, generator: torch.Generator) -> Batch:
        numbers = batch["numbers"][:, 0].double().numpy().tobytes()
        place = Path(os.environ[RECORDS]) / os.environ.get("RANK", "0")
        with place.open("ab") as file:
            file.write(struct.pack("<q", len(numbers)) + numbers)
        return batch


class Trainings:
    """Trainings of one table, each with a store of its own.

    Args:
        folder: Written by `write_table`.
        steps: Of the whole training.
    """

    def __init__(self, folder: Path, steps: int) -> None:
        self.folder, self.steps, self._count = folder, steps, 0

    def train(
        self,
        store: str,
        processes: int,
        strategy: str,
        **changes: Any,  # noqa: ANN401
    ) -> Trained:
        """Train or continue; return the result and the rows of this attempt's updates [U, B]."""
        self._count += 1
        records = self.folder / f"records-{self._count}"
        records.mkdir()
        os.environ.update(self._environment(store, records))
        values = {
            "steps": self.steps, "global_batch_size": GLOBAL, "micro_batch_size": MICRO,
            "evaluate_every_steps": EVERY, "evaluation_rows": 4_000, "strategy": strategy,
        } | changes  # fmt: skip
        config = TrainModelConfig(
            model=MODEL,
            training=TrainingSection.model_validate(values, strict=False),
            resources=ResourcesSection(num_processes=processes),
        )
        out = self.folder / f"out-{self._count}"
        with contextlib.redirect_stdout(io.StringIO()):
            train_model_step(
                contract=config.to_json(), snapshot=str(self.folder / "snapshot"),
                training=str(out / "training"), report=str(out / "report.html"),
            )  # fmt: skip
        result = TrainingResult.read(out / "training")
        return result, read_rows(records, processes)

    def stop(self, store: str) -> None:
        """Train with 2 processes, and stop after the first checkpoint."""

        def wait_and_stop() -> None:
            place = self.folder / store
            while not any(committed(each) for each in place.glob("training/*/checkpoints")):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)

        thread = threading.Thread(target=wait_and_stop)
        thread.start()
        with contextlib.suppress(RunStopped):
            self.train(store, 2, "fsdp")
        thread.join()

    def _environment(self, store: str, records: Path) -> Mapping[str, str]:
        return {
            "PERENNIAL_STORE_URI": str(self.folder / store),
            "MLFLOW_TRACKING_URI": f"sqlite:///{self.folder}/mlflow.db",
            "PERENNIAL_RUN_ID": f"run-{self._count}",
            RUN_FOLDER: "",
            RECORDS: str(records),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }


def read_rows(records: Path, processes: int) -> np.ndarray[Any, Any]:
    """Return the rows of every update in order of the ranks, whose shares are contiguous."""
    passes = BatchPlan(GLOBAL, MICRO, processes).accumulation_steps
    ranks = [list(_passes(records / str(rank))) for rank in range(processes)]
    updates = min(map(len, ranks)) // passes
    return np.array(
        [
            np.concatenate([part for rank in ranks for part in rank[at * passes :][:passes]])
            for at in range(updates)
        ]
    )


def _passes(file: Path) -> Iterator[np.ndarray[Any, Any]]:
    content, at = file.read_bytes(), 0
    while at < len(content):
        (size,) = struct.unpack_from("<q", content, at)
        yield np.frombuffer(content, np.float64, size // 8, at + 8)
        at += 8 + size


def compare(trainings: Trainings) -> Iterator[str]:
    """Yield a line for each way to continue."""
    straight = trainings.train("straight", 2, "fsdp")
    for name, (processes, strategy) in WAYS.items():
        store = f"stopped-{name}"
        trainings.stop(store)
        continued = trainings.train(store, processes, strategy)
        yield compare_attempt(f"stopped, then {name}", continued, straight)
    half = trainings.steps // 2
    for processes, strategy in ((2, "fsdp"), (1, "single")):
        store = f"extended-{processes}"
        trainings.train(store, 2, "fsdp", steps=half)
        longer = trainings.train(store, processes, strategy, extended_from=[half])
        straight = trainings.train(f"{store}-straight", 2, "fsdp", extended_from=[half])
        yield compare_attempt(f"{half} steps, extended by {processes}", longer, straight)


def compare_attempt(name: str, continued: Trained, straight: Trained) -> str:
    """Compare the updates of the last attempt of a training with one without interruption."""
    (result, seen), (uninterrupted, rows) = continued, straight
    start = len(rows) - len(seen)
    is_same = start > 0 and np.array_equal(seen, rows[start:])
    wanted = {point.step: point.metrics["log_loss"] for point in uninterrupted.evaluations}
    off = [
        abs(point.metrics["log_loss"] - wanted[point.step])
        for point in result.evaluations
        if point.step > start and point.step in wanted
    ]
    same = f"all {len(seen)}" if is_same else "OTHERS"
    return f"| {name} | {start} | {same} | {max(off):.1e} |"


def main() -> None:
    """Compare, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--write", action="store_true", help="write the page of results")
    arguments = parser.parse_args()
    lines = [
        "# Trainings that are continued",
        "",
        f"{arguments.steps} updates of {GLOBAL} rows on the CPU, {ROWS:,} rows of 26 columns; "
        "begun by 2 processes under FSDP. Beside one that was never interrupted: updates since "
        "with the same rows in the same order, and the largest difference of log loss, every "
        f"{EVERY} updates.",
        "",
        "| way | continued from update | same rows | log loss differs by at most |",
        "| --- | ---: | ---: | ---: |",
    ]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_table(folder, ROWS)
        for line in compare(Trainings(folder, arguments.steps)):
            lines.append(line)
            print(line, flush=True)
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.write:
        keep_page("continued.md", text)


if __name__ == "__main__":
    main()
