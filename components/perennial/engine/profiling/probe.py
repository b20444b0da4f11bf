"""Probe: updates of a fresh model as a training makes them, and the learning rate range test.

All in one process, on rows of the contract. The model is built as a training builds it:
normalization, activations and compilation, precision with its loss scale, kernels, and in each
update the contract's optimizer and clipping. Left out is what other processes, or many updates, are
for: sharding with its offloading, parallel dimensions and communication, statistics of batch
normalisation over processes (`sync` is then `local`), averaging, skipped and rewound updates,
evaluations and checkpoints.
"""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from perennial.engine.adapters import add_adapter
from perennial.engine.config.parallelism import Parallelism
from perennial.engine.config.training import Loading, Normalization, TrainingSection
from perennial.engine.data.batching import BatchPlan, GlobalOrder
from perennial.engine.data.encoded import EncodedSplit
from perennial.engine.data.loader import Loader
from perennial.engine.objective import forward
from perennial.engine.optimization.clipping import Clipper, local_squared_norm
from perennial.engine.optimization.optimizer import build_optimizer, set_learning_rate
from perennial.engine.optimization.parameters import freeze
from perennial.engine.optimization.update_ratio import UpdateRatio
from perennial.engine.parallelism.activations import compile_blocks, save_memory
from perennial.engine.parallelism.normalization import normalized
from perennial.engine.precision import LossScale, choose_kernels
from perennial.engine.reproducibility import StepRandomness, make_deterministic, seeded_model
from perennial.engine.task import Task, to_device
from perennial.engine.world.distributed import Scalar, World, scalar

# The range test of Smith, Cyclical Learning Rates (2017): grow until the loss has left its range.
DIVERGED = 4.0
SMOOTHING = 0.9


@dataclass(frozen=True)
class Subject:
    """The subject of the probe."""

    task: Task
    data: EncodedSplit
    training: TrainingSection
    device: torch.device


@dataclass(frozen=True)
class RatePoint:
    """The loss after an update with one learning rate.

    Attributes:
        loss: Of the batch before the update.
        smoothed: Exponential mean of the losses so far, with its start corrected.
    """

    rate: float
    loss: float
    smoothed: float


def count_devices() -> int:
    """Return the number of GPUs, or of cores where there is none."""
    return torch.cuda.device_count() or os.cpu_count() or 1


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Use so many threads in each operation while the block runs, as a training process does."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def probe_learning_rates(
    subject: Subject, *, lowest: float = 1e-6, highest: float = 1.0, updates: int = 120
) -> Iterator[RatePoint]:
    """Train while the learning rate grows from update to update; ends when the loss diverges."""
    training = subject.training
    update = Update(subject, BatchPlan(training.global_batch_size, training.micro_batch_size, 1))
    growth = (highest / lowest) ** (1 / max(updates - 1, 1))
    mean, least = 0.0, math.inf
    for step in range(updates):
        rate = lowest * growth**step
        loss = update(step, rate).loss
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        smoothed = mean / (1 - SMOOTHING ** (step + 1))
        if not math.isfinite(loss) or smoothed > DIVERGED * least:
            return
        least = min(least, smoothed)
        yield RatePoint(rate, loss, smoothed)


def suggested_rate(points: Sequence[RatePoint]) -> float | None:
    """Return a tenth of the rate at the least smoothed loss; None when the loss never fell.

    At the least loss itself the training is about to diverge; one order of magnitude below is the
    range test's usual advice (Howard and Gugger, Deep Learning for Coders, 2020, chapter 5).
    """
    lowest = min(points, key=lambda point: point.smoothed)
    if lowest.smoothed >= 0.98 * points[0].smoothed:
        return None
    return lowest.rate / 10.0


@dataclass(frozen=True)
class UpdatePoint:
    """Measurements of one update.

    Attributes:
        loss: Of the batch, before the update.
        ratio: Length of the update / length of the weights; 0 where it is not measured.
    """

    loss: float
    gradient_norm: float
    is_clipped: bool
    ratio: float


class Update:
    """One update of a fresh model, as the loop makes it, without what other ranks are for.

    With `measures_ratio` the weights are compared before and after, which costs a copy.
    """

    def __init__(
        self,
        subject: Subject,
        plan: BatchPlan,
        *,
        measures_ratio: bool = False,
        loading: Loading | None = None,
    ) -> None:
        training = alone(subject.training)
        self._subject = subject
        self._training = training
        self.model = probed_model(subject, training)
        self._parameters = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = build_optimizer(
            self.model, training, find_blocks=lambda: subject.task.blocks(self.model)
        )
        self._clipper = Clipper(training.clipping, (), subject.device)
        self._scale = LossScale(training)
        self._randomness = StepRandomness(training.seed, 0, subject.device)
        world = World(rank=0, local_rank=0, size=1, device=subject.device)
        self._ratio = UpdateRatio(self._parameters, world, is_replicated=True)
        self._measures_ratio = measures_ratio
        order = GlobalOrder(subject.data.rows, training.seed)
        self._loader = Loader(
            subject.task,
            subject.data,
            order,
            plan,
            0,
            seed=training.seed,
            loading=loading or Loading(prefetch_batches=0, pin_memory=False),
        )

    def close(self) -> None:
        """Stop the loader's threads, if it has any."""
        self._loader.close()

    def __call__(self, step: int, rate: float) -> UpdatePoint:
        """Make an update; reading what it measures waits for the device."""
        self._randomness.begin(step)
        batch, device = self._loader.batch(step), self._subject.device
        total = 0.0
        for micro_batch in batch.micro_batches:
            on_device = to_device(micro_batch, device)
            loss, objective = forward(self._subject.task, self.model, on_device, self._training)
            total += float(loss.detach()) / batch.divisor
            scale = self._scale.value / batch.divisor
            torch.autograd.backward(objective, torch.full_like(objective, scale))
        return self._step(rate, total)

    def _step(self, rate: float, loss: float) -> UpdatePoint:
        """Clip and update; leave it out when float16 gradients overflowed, as the loop does."""
        scale = self._scale.value
        norm = scalar(local_squared_norm(self._parameters, None)) ** 0.5 / scale
        self._clipper.observe_clipping(self._clipper.local_excess(self._parameters, scale))
        clipped: Scalar = 0.0
        ratio = 0.0
        if math.isfinite(norm) or not self._scale.overflowed():
            clipped = self._clipper.clip(self._parameters, norm, scale)
            set_learning_rate(self.optimizer, rate)
            if self._measures_ratio:
                self._ratio.remember()
            self.optimizer.step()
            if self._measures_ratio:
                ratio = self._ratio.measure()
            self._scale.succeeded()
        self.optimizer.zero_grad(set_to_none=True)
        return UpdatePoint(loss, float(norm), bool(clipped), ratio)


def alone(training: TrainingSection) -> TrainingSection:
    """Return the section without what other processes are for."""
    changes: dict[str, object] = {"strategy": "single", "parallelism": Parallelism()}
    if training.normalization.batch_norm == "sync":  # over one process, they are its own
        changes["normalization"] = Normalization()
    memory = training.memory.model_copy(update={"parameter_offload": False})
    return training.model_copy(update={**changes, "memory": memory})


def probed_model(subject: Subject, training: TrainingSection) -> nn.Module:
    """Build a fresh model as the worker does, ready for training.

    Raises:
        PerennialError: the device lacks what the contract asks for.
    """
    task, device = subject.task, subject.device
    choose_kernels(training, device)
    make_deterministic(enabled=training.deterministic)
    world = World(rank=0, local_rank=0, size=1, device=device)
    model = seeded_model(task, training.seed)
    add_adapter(model, training)
    model = normalized(model, training, world).to(device)
    freeze(model, training)
    save_memory(model, task, training, device)
    if training.compile:
        compile_blocks(model, task)
    model.train()
    return model
