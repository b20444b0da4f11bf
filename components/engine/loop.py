"""The training loop.

One update: every rank adds up the gradients of its share of the global batch, micro-batch by
micro-batch; the gradients are averaged over the ranks, measured, clipped and applied. What happens
at a step depends on (seed, step) and the state at that step alone.
"""

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from components.contracts.errors import BadTaskError, TrainingFailedError
from components.engine.batching import GlobalOrder
from components.engine.checkpoint import Checkpointer
from components.engine.config import TrainingSection
from components.engine.data import EncodedSplit
from components.engine.distributed import StopSignal, World, synchronize_buffers
from components.engine.optimizer import clip_gradients, local_squared_norm, set_learning_rate
from components.engine.parallelize import set_gradient_sync
from components.engine.precision import computation
from components.engine.reproducibility import StepRandomness
from components.engine.sampled_evaluation import SampledEvaluation
from components.engine.schedule import learning_rate
from components.engine.task import LABEL, Batch, Task, inputs_of
from components.engine.telemetry import Telemetry


@dataclass
class Training:
    """The parts that the loop joins; `step` counts the updates made."""

    section: TrainingSection
    world: World
    task: Task
    data: EncodedSplit
    order: GlobalOrder
    model: nn.Module
    optimizer: torch.optim.Optimizer
    evaluate: SampledEvaluation
    checkpointer: Checkpointer
    telemetry: Telemetry
    stop: StopSignal
    step: int = 0


def train(training: Training) -> bool:
    """Spend the budget; False when a signal ended it early, behind a checkpoint."""
    section, model, optimizer = training.section, training.model, training.optimizer
    telemetry = training.telemetry
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    randomness = StepRandomness(section.seed, training.world.rank)
    model.train()
    while training.step < section.steps:
        batch = next_batch(training)
        randomness.begin(training.step)
        synchronize_buffers(model, training.world)
        loss = add_gradients(training, batch, randomness.generator)
        # One small reduction tells every rank the same: loss, gradient norm, and whether to stop.
        norm, loss, stop = agree(training, loss, parameters)
        clip_gradients(parameters, norm, section.max_grad_norm)
        rate = learning_rate(
            section.optimizer.learning_rate, section.schedule, training.step, section.steps
        )
        set_learning_rate(optimizer, rate)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        training.step += 1
        telemetry.update(torch.stack([torch.ones_like(loss), loss, norm]))
        is_last = training.step == section.steps
        if is_last or training.step % section.log_every_steps == 0:
            telemetry.log(training.step, rate)
        is_evaluated = is_last or training.step % section.evaluate_every_steps == 0
        if is_evaluated or stop:
            save(training, is_evaluated=is_evaluated)
        if stop and not is_last:
            return False
    return True


def next_batch(training: Training) -> Batch:
    """This rank's share of the update's global batch, on its device."""
    start = time.monotonic()
    world = training.world
    rows = training.order.share(
        training.step, training.section.global_batch_size, world.rank, world.size
    )
    batch = training.data.gather(rows)
    training.telemetry.waited(time.monotonic() - start)
    return batch


def add_gradients(training: Training, batch: Batch, generator: torch.Generator) -> Tensor:
    """Forward and backward over the share; returns its part of the global batch's mean loss."""
    section, model, device = training.section, training.model, training.world.device
    total = torch.zeros((), dtype=torch.float64, device=device)
    micro_batches = split_batch(batch, section.micro_batch_size)
    for index, cpu_batch in enumerate(micro_batches):
        augmented = training.task.augment(cpu_batch, generator)
        micro_batch = {name: tensor.to(device) for name, tensor in augmented.items()}
        set_gradient_sync(model, enabled=index == len(micro_batches) - 1)
        with computation(section, device):
            output = model(**inputs_of(micro_batch))
        losses = checked_losses(training.task, output.float(), micro_batch)
        # Divided by the whole global batch, not by the micro-batch: the sum over micro-batches
        # and ranks is then the mean. Reducing averages over the ranks, which `size` undoes.
        scale = training.world.size / section.global_batch_size
        torch.autograd.backward(losses.sum() * scale)
        total += losses.detach().sum()
    return total / section.global_batch_size


def checked_losses(task: Task, output: Tensor, batch: Batch) -> Tensor:
    """The loss of each example.

    Raises:
        BadTaskError: the task averaged them itself, which would weigh examples wrongly.
    """
    losses = task.losses(output, batch)
    if losses.shape != (len(batch[LABEL]),):
        raise BadTaskError(
            f"{type(task).__name__}.losses must return one loss per example",
            evidence=f"{len(batch[LABEL])} examples gave a tensor of shape {list(losses.shape)}",
            action="use reduction='none' and average over everything but the first dimension",
        )
    return losses


def split_batch(batch: Batch, size: int) -> list[Batch]:
    """Micro-batches of `size` examples, in order."""
    parts = {name: torch.split(tensor, size) for name, tensor in batch.items()}
    return [dict(zip(parts, tensors, strict=True)) for tensors in zip(*parts.values(), strict=True)]


def agree(
    training: Training, loss: Tensor, parameters: list[nn.Parameter]
) -> tuple[Tensor, Tensor, bool]:
    """Gradient norm and loss of the global batch, and whether any rank was asked to stop.

    Raises:
        TrainingFailedError: the loss or the norm is not finite.
    """
    world = training.world
    squares = local_squared_norm(parameters, is_first_rank=world.is_first).to(loss.device)
    signals = world.sum(torch.stack([squares, loss, loss.new_tensor(training.stop.requested)]))
    # On a CPU reading costs nothing. On a GPU it would wait for the device at every step, so it
    # waits for a step that reads anyway: sums keep a NaN, nothing is saved in between.
    steps = (training.section.log_every_steps, training.section.evaluate_every_steps)
    done = training.step + 1
    is_read = world.device.type == "cpu" or done == training.section.steps
    is_read = is_read or any(done % every == 0 for every in steps)
    if not is_read:
        return signals[0].sqrt(), signals[1], False
    squared_norm, mean_loss, stop = signals.tolist()
    if not math.isfinite(squared_norm + mean_loss):
        raise not_finite(training, float(loss), mean_loss, math.sqrt(squared_norm))
    return signals[0].sqrt(), signals[1], stop > 0


def not_finite(
    training: Training, local_loss: float, loss: float, norm: float
) -> TrainingFailedError:
    """What to tell the user; every rank gets here at the same step."""
    losses = training.world.from_first(training.world.to_first(local_loss))
    culprits = [f"{rank}" for rank, value in enumerate(losses) if not math.isfinite(value)]
    return TrainingFailedError(
        f"the training is not finite at or before step {training.step + 1}: "
        f"loss {loss}, gradient norm {norm}",
        evidence=f"ranks with such a loss: {', '.join(culprits) or 'none, only the gradient is'}",
        action="lower the learning rate or set max_grad_norm; if it is the first step, look for "
        "a division or logarithm of zero in the task's losses",
    )


def save(training: Training, *, is_evaluated: bool) -> None:
    """Evaluate, where it is due, then write a checkpoint that holds the metrics of its step."""
    metrics = {}
    if is_evaluated:
        metrics = training.evaluate(training.model, training.step)
        training.telemetry.evaluated(training.step, metrics)
    synchronize_buffers(training.model, training.world)
    progress = training.telemetry.progress(training.step)
    training.checkpointer.save(training.model, training.optimizer, progress, metrics)
    training.telemetry.restart_clock()
