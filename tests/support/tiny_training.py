"""A tiny training for tests: data, a task with built-in faults, and ranks that start in no time.

The ranks are real processes with real gloo. They are forked from a server that has imported torch
once, because a new process takes seconds to do so; the tests of launching start processes.
"""

import ctypes
import multiprocessing
import multiprocessing.forkserver
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import polars as pl
import pytest
import torch
import torch.distributed as dist
from torch import nn

from perennial.clients.object_store import sha256_of_file
from perennial.contracts.artifact import write_atomically
from perennial.contracts.data import DataSection, ModelSection, Split, SplitSection
from perennial.contracts.environment import LEASE
from perennial.contracts.section import Section
from perennial.contracts.snapshot import DataFile, Snapshot
from perennial.contracts.training import TrainingResult
from perennial.data.dataset import split_expression
from perennial.engine import worker
from perennial.engine.checkpoints.checkpointer import load_checkpoint_model
from perennial.engine.config.training import TrainingSection
from perennial.engine.job import TrainingJob
from perennial.engine.task import LABEL, WEIGHT, Task
from perennial.engine.world import distributed
from ports import get_free_port

# In every update, so that tests know at which one a signal stops a training.
distributed.ASK_SECONDS = 0.0

FEATURES = 6
PRELOADED = ["tiny_training", "torch._dynamo"]


class TinyOptions(Section):
    width: int = 17
    dropout: float = 0.0
    batch_norm: bool = False
    affine: bool = True
    library_random: bool = False
    """Draw from NumPy in the initial weights, and from Python in each forward pass."""
    fault: Literal[
        "", "nan", "raise", "kill", "terminate", "averaged", "exit", "os._exit", "_exit"
    ] = ""
    fault_rank: int = 0
    fault_call: int = 0
    """The training forward pass at which the fault strikes, counted from 0."""
    once: str = ""
    """A file that is made when the fault strikes, after which it does not strike again."""
    after: str = ""
    """A file for which the fault waits."""
    memory_rows: int = 0
    """Rows of a training pass that fit into the memory of `fault_rank`; 0 means any number. After
    `fault_call` passes, as where the sequences of a later batch are longer."""


class TinyTask(Task):
    """Regression on a small network that is sharded block by block."""

    Options = TinyOptions
    kind: Literal["regression"] = "regression"
    metrics: ClassVar = {"rmse": "minimize"}

    def __init__(self, options, columns):
        super().__init__(options, columns)
        self.mean = 0.0
        self.calls = 0

    def fit(self, train):
        self.mean = train.select(pl.col("y").mean()).collect().item()

    def state(self):
        return {"mean": self.mean}

    def load_state(self, state):
        self.mean = state["mean"]

    def encode(self, rows):
        x = rows.select([f"x{index}" for index in range(FEATURES)]).to_numpy().astype(np.float32)
        label = (rows["y"].to_numpy() - self.mean).astype(np.float32)
        return {"x": torch.from_numpy(x), LABEL: torch.from_numpy(label)}

    def build_model(self):
        return TinyModel(self.options)

    def blocks(self, model):
        return list(model.blocks)

    def losses(self, output, batch):
        losses = (output.squeeze(-1) - batch[LABEL]).square()
        if torch.is_grad_enabled() and not output.is_meta:  # such passes only count FLOPs
            self._fill_memory(len(losses))
            losses = self._strike(losses)
            self.calls += 1
        return losses

    def _fill_memory(self, rows):
        options = self.options
        is_due = options.memory_rows and self.calls >= options.fault_call
        if is_due and dist.get_rank() == options.fault_rank and rows > options.memory_rows:
            raise torch.OutOfMemoryError("tried to allocate 20.00 GiB")

    def _strike(self, losses):
        options = self.options
        if not options.fault or self.calls != options.fault_call:
            return losses
        is_due = dist.get_rank() == options.fault_rank
        if not is_due or (options.once and Path(options.once).exists()):
            return losses
        while options.after and not Path(options.after).exists():
            time.sleep(0.02)
        if options.once:
            Path(options.once).touch()
        if options.fault == "raise":
            raise KeyError("the user's own mistake")
        if options.fault == "exit":
            sys.exit(0)
        if options.fault == "os._exit":
            os._exit(0)
        if options.fault == "_exit":  # past Python, where nothing can refuse it
            ctypes.CDLL(None)._exit(0)
        if options.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if options.fault == "terminate":
            os.kill(os.getpid(), signal.SIGTERM)
        if options.fault == "averaged":
            return losses.mean()
        return losses * float("nan") if options.fault == "nan" else losses

    def predict(self, output):
        return output.squeeze(-1)

    def score(self, predictions, labels):
        return {"rmse": float(np.sqrt(np.mean((predictions - labels) ** 2)))}

    def expected_initial_loss(self):
        return 1.0


class RegularisedTask(TinyTask):
    """The same with augmented inputs, and a training loss that holds outputs down."""

    def augment(self, batch, generator):
        return {**batch, "x": batch["x"] + 0.3 * torch.randn(batch["x"].shape, generator=generator)}

    def training_losses(self, output, batch):
        return self.losses(output, batch) + 0.1 * output.squeeze(-1).square()


class SparseTask(TinyTask):
    """The same, of which three rows in four weigh nothing."""

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, WEIGHT: (batch["x"][:, 0] > 0.7).float()}


class TinyModel(nn.Module):
    def __init__(self, options):
        super().__init__()
        norm = [nn.BatchNorm1d(options.width, affine=options.affine)] if options.batch_norm else []
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(
                    nn.Linear(FEATURES, options.width),
                    *norm,
                    nn.ReLU(),
                    nn.Dropout(options.dropout),
                ),
                nn.Sequential(nn.Linear(options.width, 9), nn.ReLU(), nn.Dropout(options.dropout)),
            ]
        )
        self.head = nn.Linear(9, 1)
        self.library_random = options.library_random
        if options.library_random:
            self.head.weight.data *= np.random.uniform(0.5, 1.5)

    def forward(self, x):
        if self.training and self.library_random:
            x = x * random.uniform(0.9, 1.1)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def write_snapshot(folder: Path, rows: int = 300) -> Path:
    """A snapshot over one small Parquet file; returns the artifact's folder."""
    return write_partitions(folder, [rows])


def write_partitions(folder: Path, rows: list[int], group_rows: int | None = None) -> Path:
    """A snapshot over Parquet files of so many rows each; returns the artifact's folder."""
    random = np.random.default_rng(5)
    x = random.normal(size=(sum(rows), FEATURES))
    y = x[:, 0] - 0.5 * x[:, 1] * x[:, 2] + 0.1 * random.normal(size=sum(rows))
    columns = {f"x{index}": x[:, index] for index in range(FEATURES)}
    frame = pl.DataFrame({"id": np.arange(sum(rows)), **columns, "y": y})
    folder.mkdir(parents=True, exist_ok=True)
    names = ["part.parquet"] if len(rows) == 1 else [f"part-{n}.parquet" for n in range(len(rows))]
    files, start = [folder / name for name in names], 0
    for file, count in zip(files, rows, strict=True):
        frame.slice(start, count).write_parquet(file, row_group_size=group_rows)
        start += count
    data, split = DataSection(uri=str(folder), label="y", ids=("id",)), SplitSection()
    parts = frame.select(split_expression(data, split).alias("split"))["split"]
    Snapshot(
        data=data,
        split=split,
        files=tuple(
            DataFile(
                uri=str(file),
                size_bytes=file.stat().st_size,
                sha256=sha256_of_file(file),
                rows=count,
            )
            for file, count in zip(files, rows, strict=True)
        ),
        columns={name: str(dtype) for name, dtype in frame.schema.items()},
        rows=sum(rows),
        split_rows={part: int((parts == part.value).sum()) for part in Split},
    ).write(folder / "snapshot")
    return folder / "snapshot"


def tiny_section(**changes) -> TrainingSection:
    """Settings under which each of 20 steps matters."""
    values = {
        "steps": 20, "global_batch_size": 32, "micro_batch_size": 16, "evaluate_every_steps": 8,
        "log_every_steps": 3, "evaluation_rows": 31, "clipping": {"max_norm": 0.5},
    }  # fmt: skip
    return TrainingSection(**(values | changes))


def tiny_job(root: Path, *, processes: int = 2, options: TinyOptions | None = None, **changes):
    """A job in a folder of its own, over the snapshot made by `write_snapshot(root)`."""
    options = options or TinyOptions()
    label = f"{len(list(root.glob('job-*')))}"
    if changes.get("strategy") == "single":
        processes = 1
    return TrainingJob(
        fingerprint=f"fingerprint-{label}",
        snapshot=str(root / "snapshot"),
        model=ModelSection(
            name="tiny", task="tiny_training:TinyTask", options=options.model_dump(mode="json")
        ),
        training=tiny_section(**changes),
        num_processes=processes,
        folder=str(made(root / f"job-{label}")),
    )


def made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def with_options(job: TrainingJob, options: TinyOptions) -> TrainingJob:
    """The same training, with other faults."""
    model = job.model.model_copy(update={"options": options.model_dump(mode="json")})
    return job.model_copy(update={"model": model})


def run_ranks(job: TrainingJob, main: Callable[[], int] = worker.main) -> list[int]:
    """Run every rank of a job once; returns their exit codes.

    Args:
        job: What to train.
        main: What every rank does; of a module in `tests/`, or pickled by `functools.partial`.
    """
    path = job.root / "job.json"
    write_atomically(path, job.to_json().encode())
    return run_ranks_at(str(path), job.num_processes, main)


def main_beside(folder: Path) -> int:
    """What a rank does whose task is a file in a folder."""
    sys.path.insert(0, str(folder))
    return worker.main()


def run_ranks_at(address: str, processes: int, main: Callable[[], int] = worker.main) -> list[int]:
    """The same, of a job that lies at an address."""
    port = get_free_port()
    ranks = [
        _context().Process(target=_run_rank, args=(address, _of_rank(rank, processes, port), main))
        for rank in range(processes)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=240)  # a cold compiler takes a minute on a busy machine
    codes = [rank.exitcode if rank.exitcode is not None else -99 for rank in ranks]
    for rank in ranks:
        rank.kill()  # one that hangs would outlive the tests
        rank.join()
    return codes


def finished(job: TrainingJob) -> TrainingResult:
    """Run a job that must succeed."""
    codes = run_ranks(job)
    logs = "\n".join(log.read_text() for log in sorted(job.logs.glob("rank-*.log")))
    assert codes == [0] * job.num_processes, f"exit codes {codes}\n{logs}"
    return TrainingResult.read(job.root)


def weights(result: TrainingResult, step: int | None = None) -> dict[str, torch.Tensor]:
    """The full weights of a kept checkpoint, by default the last."""
    records = {record.step: record for record in result.checkpoints}
    record = records[step if step is not None else max(records)]
    return load_checkpoint_model(record.uri, result)[1].state_dict()


def largest_difference(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def require_same_evaluations(one: TrainingResult, other: TrainingResult) -> None:
    """Bit for bit."""
    assert one.evaluations == other.evaluations


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    # The server finds what it must import by this variable alone.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
    return context


def preload(module: str) -> None:
    """Let ranks have a module from their start, which takes each of them seconds to import."""
    if module not in PRELOADED:
        PRELOADED.append(module)
        multiprocessing.forkserver._forkserver._stop()  # there for tests; the next rank starts it


def _of_rank(rank: int, world_size: int, port: int) -> dict[str, str]:
    """The environment of a rank, as an operator sets it beside what this process has."""
    return os.environ | {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip


def _run_rank(job: str, environment: dict[str, str], main: Callable[[], int]) -> None:
    # The server that forks ranks keeps the environment of the first test that used it.
    os.environ.clear()
    os.environ.update(environment)
    os.environ.pop(LEASE, None)
    torch.set_num_threads(1)
    sys.argv = ["worker", job]
    code = main()
    sys.stdout.flush()
    os._exit(code)


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """A folder with a snapshot, in which jobs are made."""
    folder = tmp_path_factory.mktemp("training")
    write_snapshot(folder)
    return folder
