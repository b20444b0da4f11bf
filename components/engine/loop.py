"""The training loop.

One update: every rank adds up the gradients of its share of the global batch, micro-batch by
micro-batch; the gradients are averaged over the ranks, measured, judged, clipped and applied. What
happens at a step depends on (seed, step) and the state at that step alone.
"""

import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from components.contracts.errors import BadTaskError
from components.engine.checkpoints.checkpointer import Checkpointer
from components.engine.config import TrainingSection
from components.engine.data.loader import Loader, RankBatch
from components.engine.distributed import StopSignal, World, synchronize_buffers
from components.engine.evaluation.sampled import SampledEvaluation
from components.engine.optimization.clipping import local_squared_norm, scale_gradients
from components.engine.optimization.optimizer import set_learning_rate
from components.engine.optimization.schedule import learning_rate
from components.engine.parallelism.parallelize import set_gradient_sync
from components.engine.precision import computation
from components.engine.reproducibility import StepRandomness
from components.engine.resilience.guard import Guard, Judgement
from components.engine.task import LABEL, WEIGHT, Batch, Task, inputs_of
from components.engine.telemetry import Telemetry


@dataclass
class Training:
    """The parts that the loop joins.

    Attributes:
        step: Updates made.
        data_offset: Global batches left out of the stream so far.
    """

    section: TrainingSection
    world: World
    task: Task
    loader: Loader
    model: nn.Module
    optimizer: torch.optim.Optimizer
    guard: Guard
    evaluate: SampledEvaluation
    checkpointer: Checkpointer
    telemetry: Telemetry
    stop: StopSignal
    step: int = 0
    data_offset: int = 0


def train(training: Training) -> bool:
    """Spend the budget; False when a signal ended it early, behind a checkpoint."""
    section, model, optimizer = training.section, training.model, training.optimizer
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    randomness = StepRandomness(section.seed, training.world.data_rank)
    model.train()
    while training.step < section.steps:
        batch = next_batch(training)
        randomness.begin(training.step)
        synchronize_buffers(model, training.world)
        loss = add_gradients(training, batch)
        norm, loss, judgement, stop = agree(training, loss, parameters)
        rate = learning_rate(
            section.optimizer.learning_rate, section.schedule, training.step, section.steps
        )
        if judgement is Judgement.APPLY:
            clip(training, norm, parameters)
            set_learning_rate(optimizer, rate)
            optimizer.step()
            training.telemetry.update(torch.stack([torch.ones_like(loss), loss, norm]))
        optimizer.zero_grad(set_to_none=True)
        training.step += 1
        is_last = training.step == section.steps
        if is_last or training.step % section.log_every_steps == 0:
            training.telemetry.log(training.step, rate)
        is_evaluated = is_last or training.step % section.evaluate_every_steps == 0
        if is_evaluated or stop:
            save(training, is_evaluated=is_evaluated)
        if stop and not is_last:
            return False
    return True


def next_batch(training: Training) -> RankBatch:
    """This rank's share of the update's global batch."""
    start = time.monotonic()
    batch = training.loader.batch(training.step + training.data_offset)
    training.telemetry.waited(time.monotonic() - start)
    return batch


def add_gradients(training: Training, batch: RankBatch) -> Tensor:
    """Forward and backward over the share; returns its part of the global batch's mean loss."""
    section, model, device = training.section, training.model, training.world.device
    total = torch.zeros((), dtype=torch.float64, device=device)
    # Divided by the weight of the whole global batch, not of the micro-batch: the sum over
    # micro-batches and ranks is then the mean. Reducing averages over the ranks, which the number
    # of ranks undoes.
    scale = training.world.data_size / batch.weight * training.guard.scale.value
    for index, cpu_batch in enumerate(batch.micro_batches):
        micro_batch = {
            name: tensor.to(device, non_blocking=True) for name, tensor in cpu_batch.items()
        }
        set_gradient_sync(model, enabled=index == len(batch.micro_batches) - 1)
        with computation(section, device):
            output = model(**inputs_of(micro_batch))
        losses = weighted_losses(training.task, output.float(), micro_batch)
        torch.autograd.backward(losses.sum() * scale)
        total += losses.detach().sum()
    return total / batch.weight


def weighted_losses(task: Task, output: Tensor, batch: Batch) -> Tensor:
    """The loss of each example, times its weight.

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
    return losses * batch[WEIGHT] if WEIGHT in batch else losses


def agree(
    training: Training, loss: Tensor, parameters: list[nn.Parameter]
) -> tuple[Tensor, Tensor, Judgement, bool]:
    """Gradient norm and loss of the global batch, what to do with it, and whether to stop.

    One small reduction tells every rank the same.

    Raises:
        TrainingFailedError: the loss or the norm is not finite.
    """
    world, section = training.world, training.section
    squares = local_squared_norm(parameters, world.layout).to(loss.device)
    signals = world.sum(torch.stack([squares, loss, loss.new_tensor(training.stop.requested)]))
    norm = signals[0].sqrt() / training.guard.scale.value
    # On a CPU reading costs nothing. On a GPU it would wait for the device at every step, so it
    # waits for a step that reads anyway: sums keep a NaN, nothing is saved in between.
    done = training.step + 1
    is_read = world.device.type == "cpu" or training.guard.needs_every_step
    is_read = is_read or done == section.steps
    steps = (section.log_every_steps, section.evaluate_every_steps)
    is_read = is_read or any(done % every == 0 for every in steps)
    if not is_read:
        return norm, signals[1], Judgement.APPLY, False
    judgement = training.guard.judge(done, float(signals[1]), float(norm))
    return norm, signals[1], judgement, bool(signals[2] > 0)


def clip(training: Training, norm: Tensor, parameters: list[nn.Parameter]) -> None:
    """Undo the loss scale, and scale gradients longer than the limit down to it."""
    scale, limit = training.guard.scale.value, training.section.clipping.max_norm
    if limit is None and scale == 1.0:
        return
    factor = torch.ones_like(norm, dtype=torch.float32)
    if limit is not None:
        factor = torch.clamp(limit / (norm.float() + 1e-6), max=1.0)
    scale_gradients(parameters, factor / scale)


def save(training: Training, *, is_evaluated: bool) -> None:
    """Evaluate, where it is due, then write a checkpoint that holds the metrics of its step."""
    metrics = {}
    if is_evaluated:
        metrics = training.evaluate(training.model, training.step)
        training.telemetry.evaluated(training.step, metrics)
    synchronize_buffers(training.model, training.world)
    guard = training.guard
    progress = training.telemetry.progress(training.step).model_copy(
        update={
            "data_offset": training.data_offset,
            "num_skipped": guard.skipped,
            "loss_scale": guard.scale.value if guard.scale.is_dynamic else 0.0,
            "loss_scale_steps": guard.scale.good_steps,
        }
    )
    training.checkpointer.save(training.model, training.optimizer, progress, metrics)
    training.telemetry.restart_clock()
