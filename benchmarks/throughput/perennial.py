"""Perennial: the engine's own loop, with all that is on by default."""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import override

from benchmarks.throughput.cells import (
    LEARNING_RATE,
    LOG_EVERY,
    MAX_NORM,
    SEED,
    Cell,
    Subject,
    losses_of,
)
from benchmarks.throughput.contender import Contender, Place
from perennial.contracts.data import ModelSection, TaskColumns
from perennial.contracts.training import Direction
from perennial.engine.config.training import TrainingSection
from perennial.engine.data.encoded import EncodedSplit
from perennial.engine.job import TrainingJob
from perennial.engine.loop.train import update
from perennial.engine.metrics.metric import Kind
from perennial.engine.task import LABEL, Batch, NoOptions, Task
from perennial.engine.worker import assemble
from perennial.engine.world.distributed import StopSignal, World


class CellTask(Task):
    """The cell's model as a task; its rows are encoded already, and never evaluated."""

    kind: Kind = "multiclass"
    metrics: Mapping[str, Direction] = MappingProxyType({"accuracy": "maximize"})

    def __init__(self, subject: Subject, *, channels_last: bool) -> None:
        super().__init__(NoOptions(), TaskColumns(label="label", features={}))
        self.subject = subject
        self.channels_last = channels_last

    def build_model(self) -> nn.Module:
        """The cell's."""
        model = self.subject.build()
        if self.channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # its stub lacks it
        return model

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """The cell's."""
        return self.subject.blocks(model)

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Cross-entropy of each row."""
        return losses_of(output, batch[LABEL])


# What belongs to data and scores is never called: the benchmark makes updates only.
CellTask.__abstractmethods__ = frozenset()


def cell_task(subject: Subject, *, channels_last: bool) -> CellTask:
    """Make the task of a cell."""
    return CellTask(subject, channels_last=channels_last)  # type: ignore[abstract]


def section_of(cell: Cell, subject: Subject, processes: int) -> TrainingSection:
    """The cell as a contract."""
    return TrainingSection.model_validate(
        {
            "seed": SEED,
            "steps": 10**9,
            "global_batch_size": subject.batch_size,
            "micro_batch_size": subject.batch_size // processes,
            "optimizer": {"learning_rate": LEARNING_RATE, "implementation": "fused"},
            "schedule": {"shape": "constant", "warmup_fraction": 0.0},
            "clipping": {"max_norm": MAX_NORM},
            "precision": cell.precision,
            "strategy": cell.strategy,
            "compile": cell.compiled,
            "log_every_steps": LOG_EVERY,
            "evaluate_every_steps": 10**9,
            **cell.settings,
        },
        strict=False,
    )


class Perennial(Contender):
    """One update after the other, logged as the loop logs, in a job folder as any training."""

    name = "perennial"
    is_reproducible = True

    def __init__(self, cell: Cell, subject: Subject, place: Place) -> None:
        super().__init__(cell, subject, place)
        self.choose_kernels()
        holder = [tempfile.mkdtemp(prefix="throughput-perennial-") if place.rank == 0 else ""]
        dist.broadcast_object_list(holder, src=0)
        self._folder = Path(holder[0])
        if place.rank == 0:
            (self._folder / "logs").mkdir()
            (self._folder / "train").mkdir()
            np.save(self._folder / "train" / f"{subject.input_name}.npy", subject.inputs.numpy())
            np.save(self._folder / "train" / f"{LABEL}.npy", subject.labels.numpy())
        dist.barrier()
        data = EncodedSplit(self._folder / "train")
        local = int(os.environ["LOCAL_RANK"])
        job = self._job()
        world = World(place.rank, local, place.size, place.device).arrange(job.training)
        task = cell_task(subject, channels_last=subject.convolves and cell.strategy != "fsdp")
        self.training = assemble(job, world, StopSignal(), task, data=data, validation=data)
        self.training.model.train()

    @override
    def run(self, steps: int) -> None:
        # The body of `loop.train`, without evaluations and checkpoints.
        training = self.training
        for _ in range(steps):
            update(training)
            if training.is_due(LOG_EVERY):
                training.telemetry.log(training.step, training.ratio.measure())

    @override
    def close(self) -> None:
        self.training.loader.close()
        self.training.instruments.watchdog.close()
        dist.barrier()
        if self.place.rank == 0:
            shutil.rmtree(self._folder)
        super().close()

    def _job(self) -> TrainingJob:
        return TrainingJob(
            fingerprint="throughput",
            snapshot="",
            model=ModelSection(name="cell", task="benchmarks.throughput.perennial:CellTask"),
            training=section_of(self.cell, self.subject, self.place.size),
            num_processes=self.place.size,
            folder=str(self._folder),
        )
