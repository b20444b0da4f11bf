"""The training loop.

One update: every rank adds up the gradients of its share of the global batch, micro-batch by
micro-batch; the gradients are averaged over the ranks, measured, judged, clipped and applied. What
happens at a step depends on (seed, step) and the state at that step alone.
"""

import logging
import math
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from perennial.contracts.training import AVERAGED
from perennial.engine.checkpoints.checkpointer import Checkpointer
from perennial.engine.config.training import TrainingSection
from perennial.engine.data.loader import Loader, RankBatch
from perennial.engine.evaluation.sampled import Evaluated, SampledEvaluation
from perennial.engine.loop.telemetry import Instruments, Telemetry
from perennial.engine.objective import both_losses, forward
from perennial.engine.optimization.averaging import AveragedWeights
from perennial.engine.optimization.clipping import Clipper, local_squared_norm
from perennial.engine.optimization.optimizer import follow_schedule
from perennial.engine.optimization.update_ratio import UpdateRatio
from perennial.engine.parallelism.context import own_sequences
from perennial.engine.parallelism.parallelize import average_gradients, set_gradient_sync
from perennial.engine.parallelism.pipeline import Pipeline
from perennial.engine.reproducibility import StepRandomness
from perennial.engine.resilience.guard import Guard, Judgement
from perennial.engine.resilience.not_finite import collect, failure
from perennial.engine.resilience.out_of_memory import naming_out_of_memory
from perennial.engine.task import Task, to_device
from perennial.engine.world.distributed import (
    Scalar,
    StopSignal,
    World,
    read,
    scalar,
    stored_buffers,
    synchronize_buffers,
)

logger = logging.getLogger(__name__)


@dataclass
class Training:
    """The parts of the training loop.

    Attributes:
        step: The current or latest update, counted from 1.
        data_offset: Global batches skipped so far.
        end: The last update of the current stage; of the training, if it has no stages.
    """

    section: TrainingSection
    world: World
    task: Task
    loader: Loader
    model: nn.Module
    optimizer: torch.optim.Optimizer
    averaged: AveragedWeights | None
    clipper: Clipper
    guard: Guard
    evaluate: SampledEvaluation
    checkpointer: Checkpointer
    telemetry: Telemetry
    instruments: Instruments
    errors: Path
    stop: StopSignal
    step: int = 0
    data_offset: int = 0
    hints: tuple[str, ...] = ()
    turned_off: tuple[str, ...] = ()
    end: int = field(init=False)
    parameters: list[nn.Parameter] = field(init=False)
    unsharded: list[nn.Parameter] = field(init=False)
    ratio: UpdateRatio = field(init=False)
    randomness: StepRandomness = field(init=False)

    def __post_init__(self) -> None:
        self.end = self.section.stage_at(self.step).stop
        self.parameters = [each for each in self.model.parameters() if each.requires_grad]
        # Nothing else averages the gradients of scalars beside shards.
        is_sharded = self.section.strategy in ("fsdp", "hsdp")
        self.unsharded = [each for each in self.parameters if is_sharded and each.ndim == 0]
        self.ratio = UpdateRatio(
            # Of scalars beside shards every rank has a copy, which would count repeatedly.
            [each for each in self.parameters if each.ndim or not self.unsharded],
            self.world,
            is_replicated=self.is_replicated,
        )
        rank = self.world.layout.random_rank
        self.randomness = StepRandomness(self.section.seed, rank, self.world.device)

    @property
    def is_replicated(self) -> bool:
        """Whether every rank has the whole gradient, the same on all of them."""
        return isinstance(self.model, DistributedDataParallel)

    def is_due(self, every: int) -> bool:
        """Whether the current update ends an interval; the last one of a stage always does."""
        return self.step % every == 0 or self.step == self.end


def train(training: Training) -> bool:
    """Run all steps of a stage; return False when a signal stopped it at a checkpoint."""
    section = training.section
    training.model.train()
    while training.step < training.end:
        judgement, stop = update(training)
        if judgement is Judgement.REWIND:
            # Neither logged nor saved: the weights behind this step are about to be replaced.
            rewind(training)
            continue
        if training.is_due(section.log_every_steps):
            # Before the checkpoint, which must hold the point of its own step: a resumed training
            # begins at the next step and would never log it.
            training.telemetry.log(training.step, training.ratio.measure())
        is_evaluated = training.is_due(section.evaluate_every_steps)
        if is_evaluated or stop:
            save(training, is_evaluated=is_evaluated)
        if stop and training.step < section.steps:
            return False  # also at the end of a stage: another one would begin
    return True


def update(training: Training) -> tuple[Judgement, bool]:
    """Run one update; return the verdict on it, and whether a signal asks to stop after it."""
    section, optimizer = training.section, training.optimizer
    training.step += 1
    steps_done = training.step - 1
    training.instruments.before(training.step)
    # The answer is read after the update, so that the reduction runs beside it.
    training.stop.ask(training.world)
    batch = next_batch(training)
    # Set again at every step, so that a resumed training draws the same dropout masks.
    training.randomness.begin(steps_done)
    # Before every update, so that running statistics are the same under every strategy.
    synchronize_buffers(training.model, training.world)
    buffers = clone_buffers(training)
    rate = follow_schedule(optimizer, section, steps_done)

    with naming_out_of_memory(training.task, training.model, section, training.world):
        loss = add_gradients(training, batch)
    # Before the norm is measured, which counts these gradients too.
    average_gradients(training.unsharded, training.world.layout)
    norm = measure_norm(training)
    # Before clipping, which changes gradients in place: a record of bad ones needs them unchanged.
    judgement, stop = decide(training, loss, norm, stop=training.stop.is_requested())

    if judgement in (Judgement.SKIP, Judgement.STOP):
        record_not_finite(training, judgement, batch, loss)
    if judgement in (Judgement.SKIP, Judgement.RESCALE):
        # The step counts, but nothing that the bad batch touched may stay.
        for buffer, before in zip(stored_buffers(training.model), buffers, strict=True):
            buffer.copy_(before)
    if judgement is Judgement.APPLY:
        clipped = training.clipper.clip(training.parameters, norm, training.guard.scale.value)
        if training.is_due(section.log_every_steps):
            training.ratio.remember()  # what `log` compares the weights with
        optimizer.step()
        training.guard.scale.succeeded()
        if training.averaged is not None:
            training.averaged.update(steps_done)
        training.telemetry.update(norm, clipped, rate)
    # As `zero_grad` does, but for its hooks.
    for parameter in training.parameters:
        parameter.grad = None
    is_interrupted = stop or training.is_due(section.evaluate_every_steps)
    is_interrupted = is_interrupted or judgement is Judgement.REWIND
    training.instruments.after(training.step, is_interrupted=is_interrupted)
    return judgement, stop


def next_batch(training: Training) -> RankBatch:
    """Return this rank's share of the update's global batch."""
    start = time.monotonic()
    # After a rewind a step uses a later batch than its own: those before the jump are left out.
    batch = training.loader.batch(training.step - 1 + training.data_offset)
    parts = own_sequences(batch.micro_batches, training.task, training.world.layout)
    training.telemetry.waited(time.monotonic() - start)
    if not batch.weight:
        logger.warning("step=%d has no gradient: its rows all have weight 0", training.step)
    return replace(batch, micro_batches=parts)


def clone_buffers(training: Training) -> list[Tensor]:
    """Copy the buffers before an update that may be skipped.

    Its forward pass may write non-finite values into running statistics permanently.
    """
    if not training.guard.needs_every_step:
        return []
    return [buffer.clone() for buffer in stored_buffers(training.model)]


def add_gradients(training: Training, batch: RankBatch) -> Scalar:
    """Run forward and backward passes of the share; return its part of the mean loss."""
    section, model, device = training.section, training.model, training.world.device
    # Divided by the weight of the whole global batch, not of the micro-batch: the sum over
    # micro-batches and ranks is then the mean. Reducing averages over the ranks, which the number
    # of ranks undoes.
    layout = training.world.layout
    scale = layout.averaging_size / batch.divisor * training.guard.scale.value
    if isinstance(model, Pipeline):
        losses_of = partial(both_losses, training.task, section=section)
        total = scalar(model.add_gradients(batch.micro_batches, losses_of, scale))
    else:
        total = 0.0
        for number, micro_batch in enumerate(batch.micro_batches, start=1):
            # Gradients add up on each rank first, so that an update exchanges them once.
            set_gradient_sync(model, enabled=number == len(batch.micro_batches))
            on_device = to_device(micro_batch, device)
            loss, objective = forward(training.task, model, on_device, section)
            total = scalar(loss) + total
            torch.autograd.backward(objective, torch.full_like(objective, scale))
    # Tensor groups compute the same losses, which count once.
    return total / batch.divisor if layout.is_first_of_tensor_group else 0.0


def measure_norm(training: Training) -> Scalar:
    """Return the norm of the whole gradient, without the loss scale; the same on all ranks."""
    world, clipper, parameters = training.world, training.clipper, training.parameters
    scale = training.guard.scale.value
    excess = clipper.local_excess(parameters, scale)
    if training.is_replicated:
        # Nothing to add up, so nobody waits: the faster rank of two would, at every step.
        squares = scalar(local_squared_norm(parameters, None))
    else:
        squares = scalar(local_squared_norm(parameters, world.layout))
        # Together, because a reduction's latency counts and not its size.
        squares, excess = world.sum_scalars([squares, excess])
    clipper.observe_clipping(excess)
    return squares**0.5 / scale


def decide(training: Training, loss: Scalar, norm: Scalar, *, stop: bool) -> tuple[Judgement, bool]:
    """Return the verdict on the update, and whether to stop after it; the same on all ranks.

    Losses are added up over the ranks, and read, at logging steps: a reduction and a read at every
    step would make ranks and GPUs wait. Until then they are in `guard.pending_losses`.
    """
    section, guard, world = training.section, training.guard, training.world
    guard.pending_losses.append(loss)
    is_read = guard.needs_every_step or (stop and guard.may_stop_anywhere)
    for every in (section.log_every_steps, section.evaluate_every_steps):
        is_read = is_read or training.is_due(every)
    # On a CPU the norm is a plain number, so that a bad gradient is noticed at its own step.
    is_suspect = world.device.type == "cpu" and not math.isfinite(norm)
    if not (is_read or is_suspect):
        return Judgement.APPLY, False
    losses = read(world.sum_in_order(guard.pending_losses))
    guard.pending_losses.clear()
    judgement = guard.judge(training.step, losses, float(norm))
    is_applied = judgement is Judgement.APPLY
    training.telemetry.add_losses(losses if is_applied else losses[:-1])
    return judgement, stop


def record_not_finite(
    training: Training, judgement: Judgement, batch: RankBatch, part: Scalar
) -> None:
    """Record which rows and tensors are not finite.

    Raises:
        TrainingFailedError: the update must not be skipped.
    """
    step, rows = training.guard.bad_step, batch.rows
    if step < training.step:
        rows = training.loader.gather(step - 1 + training.data_offset).rows
    seen = collect(
        training.world, training.model, training.errors, step=step, loss=float(part), rows=rows
    )
    error = failure(step, training.guard.skipped, seen, seen_at=training.step)
    if judgement is Judgement.STOP:
        raise error
    logger.warning("left out: %s", error.problem)


def rewind(training: Training) -> None:
    """Return to the last checkpoint before the jump; skip the batches since.

    Raises:
        TrainingFailedError: there is no such checkpoint, or there were too many rewinds.
    """
    guard = training.guard
    # A checkpoint between two evaluations was made because a signal came: a training that was not
    # stopped does not have it, and must go back as far.
    every = training.section.evaluate_every_steps
    corrupt_from = (guard.begin_rewind() - 1) // every * every + 1
    training.instruments.watchdog.begin("checkpoint", training.step - 1)
    training.checkpointer.discard_from(corrupt_from)
    progress = training.checkpointer.restore(training.model, training.optimizer)
    if not progress.step:
        raise guard.no_way_back()
    left_out = training.step - progress.step
    logger.warning("rewound from=%d to=%d left_out=%d", training.step, progress.step, left_out)
    training.data_offset += left_out
    training.step = progress.step
    training.guard = Guard.resume(training.section, progress)
    # The checkpoint was written before this rewind and does not count it.
    training.guard.rewinds, training.guard.trusted_step = guard.rewinds, progress.step
    training.telemetry.rewind(progress)
    training.clipper = Clipper(
        training.section.clipping, progress.gradient_norms, training.world.device
    )


def evaluate(training: Training) -> Evaluated:
    """Measure the model, and its average as metrics `averaged_…` if there is one."""
    evaluated = training.evaluate(training.model, training.step)
    if training.averaged is None:
        return evaluated
    with training.averaged.swapped():
        averaged = training.evaluate(training.model, training.step)
    named = {f"{AVERAGED}{name}": value for name, value in averaged.metrics.items()}
    return replace(evaluated, metrics=evaluated.metrics | named)


def save(training: Training, *, is_evaluated: bool) -> None:
    """Evaluate if due, then write a checkpoint with the metrics of its step."""
    metrics = {}
    synchronize_buffers(training.model, training.world)
    if is_evaluated:
        training.instruments.watchdog.begin("evaluation", training.step)
        evaluated = evaluate(training)
        metrics = evaluated.metrics
        training.telemetry.evaluated(training.step, metrics, evaluated.watched)
    training.instruments.watchdog.begin("checkpoint", training.step)
    progress = training.telemetry.progress(training.step).model_copy(
        update={
            "data_offset": training.data_offset,
            "collective_waits": training.instruments.stragglers.samples,
            "gradient_norms": training.clipper.observed(),
        }
    )
    progress = training.guard.record(progress)
    training.checkpointer.save(training.model, training.optimizer, progress, metrics)
    # Evaluation and checkpoint would count as slow updates.
    training.telemetry.restart_clock()
