"""Rescoring: score checkpoints, and means of them, on every validation row.

Rows are streamed. Each row's loss, prediction, label and weight go to disk batch by batch, so
memory grows neither with the rows nor with the number of candidates. Where it saves time, several
processes share the rows:

    python -m perennial.select_checkpoint.rescoring REQUEST.json RANK

Each scores its own rows with all requested weights. They exchange only files, and their results
equal those of one process bit for bit; so their number may depend on the clock.
"""

import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import nn

from perennial.clients.outages import waiting_out_outages
from perennial.contracts.artifact import write_atomically
from perennial.contracts.data import Split
from perennial.contracts.environment import LEASE
from perennial.contracts.errors import BadDataError, PerennialError
from perennial.contracts.section import Section
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import CheckpointRecord, TrainingResult
from perennial.contracts.user_code import no_silent_exit, user_code
from perennial.data.dataset import Dataset
from perennial.engine.checkpoints.checkpointer import load_checkpoint_model, load_checkpoint_models
from perennial.engine.evaluation.resampling import Blocks, blocks_of
from perennial.engine.evaluation.scoring import ScoredBatch, Share, scoring_device, share_batches
from perennial.engine.task import Task
from perennial.select_checkpoint.averaging import (
    mean_model,
    normalizations,
    recompute_statistics,
    sampled_rows,
    training_batches,
)
from perennial.steps.lease import RunLease, follow_lease
from perennial.steps.processes import run_module, running_processes, wait_for_processes

REQUEST_FILE = "request.json"
# Time to import PyTorch and read the snapshot: 4 s measured on two busy cores.
STARTING_SECONDS = 4.0
# The saving must be clear, because the remaining time is an extrapolation.
WORTH = 2.0
LAST_LINES = 3
ARRAYS = ("losses", "predictions", "labels", "weights")
Steps = tuple[int, ...]
"""Steps of one checkpoint, or of those whose mean is requested."""


class Request(Section):
    """The request to every process."""

    training: str
    """Folder of the `TrainingResult`."""
    snapshot: str
    """Folder of the `Snapshot`."""
    work: tuple[Steps, ...]
    """Weights to score."""
    processes: int
    """Number of processes that share the rows."""


class Figures(Section):
    """Scores of weights on some rows: a file of float64 for each array of a `ScoredBatch`."""

    folder: str
    averaged: bool
    """Whether these are the moving average of the weights."""
    rows: int
    shapes: dict[str, tuple[int, ...]]
    """Shape of one row of each array; empty if there are no rows."""


class Found(Section):
    """Scores by one process of a checkpoint's weights, and of their moving average."""

    figures: tuple[Figures, ...]


def write_figures(batches: Iterable[ScoredBatch], folder: Path, *, averaged: bool) -> Figures:
    """Append each batch to the files; memory holds one batch."""
    folder.mkdir(parents=True)
    rows, shapes = 0, {}
    with ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("wb")) for name in ARRAYS}
        for batch in batches:
            for name, file in files.items():
                array = np.ascontiguousarray(getattr(batch, name), dtype=np.float64)
                array.tofile(file)
                shapes[name] = array.shape[1:]
            rows += len(batch.losses)
    return Figures(folder=str(folder), averaged=averaged, rows=rows, shapes=shapes)


def read_together(parts: Sequence[Figures]) -> ScoredBatch:
    """Return the scores of all processes, in order, as views of the first one's files.

    Raises:
        BadDataError: there are no rows.
    """
    rows = sum(part.rows for part in parts)
    if not rows:
        raise BadDataError(
            "the validation split has no rows, so no checkpoint can be scored",
            action="look at the snapshot's split_rows and the split section of the contract",
        )
    first = Path(parts[0].folder)
    for part in parts[1:]:
        for name in ARRAYS:
            with (first / name).open("ab") as whole, (Path(part.folder) / name).open("rb") as rest:
                shutil.copyfileobj(rest, whole)
        shutil.rmtree(part.folder)
    shapes = next(part.shapes for part in parts if part.rows)
    # Plain views: reading through the memmap subclass costs several times as much.
    return ScoredBatch(
        *(
            np.asarray(np.memmap(first / name, np.float64, "r", shape=(rows, *shapes[name])))
            for name in ARRAYS
        )
    )


@dataclass(frozen=True)
class Machine:
    """The machine's resources for scoring."""

    gpus: int
    cores: int
    threads: int

    @classmethod
    def here(cls) -> "Machine":
        """Return this machine's resources."""
        return cls(torch.cuda.device_count(), len(os.sched_getaffinity(0)), torch.get_num_threads())


def choose_num_processes(machine: Machine, trained_on: int, seconds: float) -> int:
    """Return the number of processes: one per GPU, or per free core up to the training's number.

    `trained_on` are the training's processes, since a container often sees more cores than it may
    use; `seconds` is the time that one process would need for the rest.
    """
    on_cpu = 1 if machine.gpus else min(trained_on, machine.cores // machine.threads)
    available = max(machine.gpus, on_cpu, 1)
    saved = seconds * (1 - 1 / available)
    return available if saved > WORTH * STARTING_SECONDS else 1


class Rescoring:
    """The kept weights of one training on the validation rows of one snapshot."""

    def __init__(
        self, training: Path, snapshot: Path, scratch: Path, processes: int | None = None
    ) -> None:
        self.result = TrainingResult.read(training)
        self.dataset = Dataset(Snapshot.read(snapshot))
        self._inputs = (str(training), str(snapshot))
        self._scratch = scratch
        self._processes = processes
        self._numbers = count()  # of folders

    def blocks(self) -> Blocks:
        """Return the independent blocks of the validation rows."""
        data, rows = self.dataset.snapshot.data, self.dataset.scan(Split.VALIDATION)
        names = [name for name in (data.time, data.group) if name]
        # Only row numbers if there are no blocks: a text label would fill the memory.
        columns = names or pl.repeat(0, pl.len(), dtype=pl.Int8).alias("row")
        return blocks_of(self.dataset.collect(rows.select(columns)), data)

    def scores(self, work: Sequence[Steps]) -> Iterator[list[tuple[bool, ScoredBatch]]]:
        """Yield the scores on all rows of each of the weights and its moving average.

        If the number of processes is not set, the first is scored in this one, and its time decides
        whether several processes save time for the others.
        """
        left = list(work)
        processes = self._processes or 1
        while left and processes == 1:
            started = time.perf_counter()
            folder = self._scratch / f"figures-{next(self._numbers)}"
            yield _whole([self.share(left.pop(0), Share(0, 1), folder)])
            seconds = (time.perf_counter() - started) * len(left)
            if self._processes is None:
                processes = choose_num_processes(Machine.here(), self.result.world_size, seconds)
        if left:
            training, snapshot = self._inputs
            request = Request(
                training=training, snapshot=snapshot, work=tuple(left), processes=processes
            )
            folder = self._scratch / f"processes-{next(self._numbers)}"
            yield from map(_whole, score_in_processes(request, folder))

    def share(self, steps: Steps, share: Share, folder: Path) -> Found:
        """Write one process's scores of these weights, and their moving average, to a folder."""
        return Found(
            figures=tuple(
                write_figures(
                    share_batches(task, model, self.dataset, Split.VALIDATION, share),
                    folder / f"{number}",
                    averaged=averaged,
                )
                for number, (averaged, task, model) in enumerate(self._models(steps))
            )
        )

    def untrained(self, steps: Steps, *, averaged: bool) -> tuple[Task, nn.Module]:
        """Return the mean of several checkpoints, or one's moving average, with new statistics."""
        records = self._records(steps)
        if averaged:
            task, model = load_checkpoint_model(records[0].uri, self.result, averaged=True)
        else:
            task, model = mean_model(records, self.result)
        self._renew(task, model)
        return task, model

    def _models(self, steps: Steps) -> Iterator[tuple[bool, Task, nn.Module]]:
        """Yield a checkpoint's weights and its moving average, if any; or the mean of several."""
        if len(steps) > 1:
            yield False, *self.untrained(steps, averaged=False)
            return
        (record,) = self._records(steps)
        for averaged, task, model in load_checkpoint_models(record.uri, self.result):
            model.to(scoring_device())
            if averaged:
                self._renew(task, model)
            yield averaged, task, model

    def _records(self, steps: Steps) -> list[CheckpointRecord]:
        found = (record for record in self.result.checkpoints if record.step in steps)
        return sorted(found, key=lambda record: record.step)

    @cached_property
    def _training_rows(self) -> pl.DataFrame:
        return sampled_rows(self.dataset)

    def _renew(self, task: Task, model: nn.Module) -> None:
        model.to(scoring_device())
        if normalizations(model):
            recompute_statistics(
                model, training_batches(task, self._training_rows, scoring_device())
            )


def _whole(shares: Sequence[Found]) -> list[tuple[bool, ScoredBatch]]:
    """Merge the scores of all processes."""
    return [
        (parts[0].averaged, read_together(parts))
        for parts in zip(*(share.figures for share in shares), strict=True)
    ]


def score_in_processes(request: Request, scratch: Path) -> Iterator[list[Found]]:
    """Yield, for each of the requested weights, every process's scores in the order of the rows.

    Raises:
        PerennialError: a process failed.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    write_atomically(scratch / REQUEST_FILE, request.to_json().encode())
    # Without the lease the processes end by themselves, even if this one was killed.
    lease = RunLease(scratch)
    lease.acquire()
    try:
        _run(request, scratch, lease)
        for number in range(len(request.work)):
            files = (found_file(scratch, rank, number) for rank in range(request.processes))
            yield [Found.from_json(file.read_text()) for file in files]
    finally:
        lease.release()


def found_file(scratch: Path, rank: int, number: int) -> Path:
    """Return the file of a process's results for one of the weights; its scores are beside it."""
    return scratch / f"found-{rank}-{number}.json"


def _run(request: Request, scratch: Path, lease: RunLease) -> None:
    arguments = [
        (
            "perennial.select_checkpoint.rescoring",
            [str(scratch / REQUEST_FILE), str(rank)],
            _environment(os.environ, rank, lease),
            scratch / f"log-{rank}",
        )
        for rank in range(request.processes)
    ]
    with running_processes(run_module, arguments) as processes:
        codes = wait_for_processes(processes, grace_seconds=0.0)
    for rank, code in codes.items():
        if code != 0 or not found_file(scratch, rank, len(request.work) - 1).exists():
            raise PerennialError(
                f"process {rank} of {request.processes} failed while it scored checkpoints",
                evidence=_last_lines(scratch / f"log-{rank}"),
                action="set selection.processes = 1 to reproduce it in this process; keep it "
                "if there is too little memory for several models",
            )


def _environment(environment: Mapping[str, str], rank: int, lease: RunLease) -> dict[str, str]:
    # Set by KFP's executor; with it, importing kfp fails in child processes.
    kept = {name: value for name, value in environment.items() if name != "_KFP_RUNTIME"}
    visible = kept.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(n) for n in range(torch.cuda.device_count())]
    if devices and torch.cuda.is_available():
        kept["CUDA_VISIBLE_DEVICES"] = devices[rank % len(devices)]
    return {
        **kept,
        # The user's task is imported from wherever this process finds it.
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        LEASE: lease.address,
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
        "POLARS_MAX_THREADS": str(torch.get_num_threads()),
    }


def _last_lines(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-LAST_LINES:]) or "no output"


def main() -> int:
    """Score this process's rows with all weights of the request; returns the exit code."""
    with waiting_out_outages(), no_silent_exit(), user_code("the scoring of checkpoints"):
        follow_lease()
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        path, rank = Path(sys.argv[1]), int(sys.argv[2])
        request = Request.from_json(path.read_text())
        rescoring = Rescoring(Path(request.training), Path(request.snapshot), path.parent)
        for number, steps in enumerate(request.work):
            file = found_file(path.parent, rank, number)
            found = rescoring.share(steps, Share(rank, request.processes), file.with_suffix(""))
            write_atomically(file, found.to_json().encode())
    return 0
