"""Run `python -m benchmarks.selection_memory`: what memory does choosing take per validation row?

Two checkpoints of a linear model are scored and compared on a table of one month per 400,000 rows,
in a process of its own for each size. Memory is what a process has beside files that it reads
(`RssAnon`), looked at every millisecond; a row's share is the difference of two sizes by that of
their validation rows. Linux only.
"""

import argparse
import platform
import subprocess
import sys
import threading
import time
import warnings
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import torch
from torch.distributed.checkpoint.state_dict_saver import save

from perennial.contracts.data import DataSection, Split, SplitSection
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import CheckpointRecord, TrainingResult
from perennial.data.dataset import Dataset
from perennial.engine.checkpoints.folder import (
    CheckpointManifest,
    Progress,
    commit,
    partial_path,
)
from perennial.engine.task import Task, load_task
from perennial.select_checkpoint.candidates import score_checkpoints
from perennial.select_checkpoint.rescoring import Rescoring
from perennial.select_checkpoint.selection import select
from perennial.snapshot_data.manifest import take_snapshot

TASK = "perennial.tasks.tabular:TabularClassification"
STEPS = (1, 2)
ROWS_PER_FILE, MONTH_DAYS = 400_000, 30.4
SIZES = (1_200_000, 3_600_000)
CASES = {
    "2 classes, log_loss": (2, "log_loss"),
    "2 classes, roc_auc": (2, "roc_auc"),
    "20 classes, log_loss": (20, "log_loss"),
}

PARTS = ("reading alone", "scoring", "choosing")


class Peak:
    """The most memory of this process while it is watched."""

    def __enter__(self) -> "Peak":
        self.bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.001):
            status = Path("/proc/self/status").read_text()
            line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
            self.bytes = max(self.bytes, 1024 * int(line.split()[1]))


def write_table(folder: Path, rows: int, classes: int) -> Snapshot:
    """A month of days in each file."""
    folder.mkdir()
    for number in range(rows // ROWS_PER_FILE):
        random = np.random.default_rng(number)
        days = MONTH_DAYS * (number + np.sort(random.random(ROWS_PER_FILE)))
        microseconds = (days * 86_400e6).astype("timedelta64[us]")
        pl.DataFrame(
            {
                "time": np.datetime64("2025-01-01", "us") + microseconds,
                "x": random.normal(size=ROWS_PER_FILE).astype(np.float32),
                "label": random.integers(0, classes, ROWS_PER_FILE),
            }
        ).write_parquet(folder / f"part-{number:03}.parquet")
    data = DataSection(uri=str(folder), label="label", time="time", features=("x",))
    return take_snapshot(data, SplitSection(validation_fraction=0.5, test_fraction=0.1))


def leave_training(folder: Path, task: Task) -> Path:
    """Two checkpoints of random weights."""
    records = []
    for step in STEPS:
        torch.manual_seed(step)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            weights = {"model": task.build_model().state_dict()}
            save(weights, checkpoint_id=partial_path(folder, step), no_dist=True)
        manifest = CheckpointManifest(
            fingerprint="f", step=step, metrics={}, files={}, progress=Progress(step=step)
        )
        uri = str(commit(folder, manifest))
        records.append(CheckpointRecord(step=step, uri=uri, metrics={}, kept_as=("best",)))
    TrainingResult(
        fingerprint="f", task=TASK, options=task.options.model_dump(mode="json"),
        columns=task.columns, task_state=task.state(), steps=max(STEPS), world_size=1,
        strategy="single", num_parameters=1, history=(), evaluations=(), seconds=1.0,
        checkpoints=tuple(records), num_resumes=0,
    ).write(folder / "training")  # fmt: skip
    return folder / "training"


def measure(rows: int, classes: int, metric: str) -> tuple[int, ...]:
    """Validation rows, and the most bytes while reading them, while scoring and while choosing."""
    with TemporaryDirectory(prefix="perennial-memory-") as name:
        folder = Path(name)
        snapshot = write_table(folder / "data", rows, classes)
        snapshot.write(folder / "snapshot")
        task = load_task(TASK, {"hidden": []}, snapshot.task_columns)
        task.fit(Dataset(snapshot).scan(Split.TRAIN).head(10_000))
        task.metrics = {metric: task.metrics[metric]}
        training = leave_training(folder / "checkpoints", task)
        (folder / "scratch").mkdir()
        rescoring = Rescoring(training, folder / "snapshot", folder / "scratch", processes=1)
        with Peak() as reading:
            for _ in rescoring.dataset.batches(Split.VALIDATION, task.scoring_rows):
                pass
        with Peak() as scoring:
            candidates = score_checkpoints(rescoring)
        with Peak() as choosing:
            select(
                task, candidates, rescoring.blocks(), metric=metric,
                tolerance=0.5, limits={},
            )  # fmt: skip
        peaks = (peak.bytes for peak in (reading, scoring, choosing))
        return len(candidates[0].scored.losses), *peaks


def main() -> None:
    """Each case at two sizes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--rows", type=int)
    arguments = parser.parse_args()
    if arguments.case:
        print(*measure(arguments.rows, *CASES[arguments.case]))
        return
    print(f"{date.today()}, {platform.machine()}, Python {platform.python_version()}, "
          f"torch {torch.__version__}, polars {pl.__version__}")  # fmt: skip
    for case in CASES:
        began = time.perf_counter()
        found: list[list[int]] = []
        for rows in SIZES:
            command = [sys.executable, "-m", "benchmarks.selection_memory"]
            command += ["--case", case, "--rows", str(rows)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found.append([int(value) for value in done.stdout.split()])
        (few, *less), (many, *more) = found
        seconds = time.perf_counter() - began
        print(f"{case}: {few:,} and {many:,} rows, {seconds:.0f} s")
        for part, before, after in zip(PARTS, less, more, strict=True):
            per_row = (after - before) / (many - few)
            print(f"  {part}: {per_row:.1f} bytes per row, {after / 1e6:.0f} MB at most")


if __name__ == "__main__":
    main()
