"""Objective: a micro-batch's part of the global loss, reported and differentiated."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from perennial.contracts.errors import BadTaskError
from perennial.engine.config.training import TrainingSection
from perennial.engine.data.global_batch import gather_rows
from perennial.engine.parallelism.parallelize import unwrapped
from perennial.engine.precision import computation
from perennial.engine.task import ANSWERS, LABEL, WEIGHT, Batch, Task, inputs_of


def forward(
    task: Task, model: nn.Module, batch: Batch, training: TrainingSection
) -> tuple[Tensor, Tensor]:
    """Run the model; return the sum of the weighted losses, reported and differentiated.

    The second contains auxiliary losses and the teachers' part. Neither is scaled.
    """
    with computation(training, batch[LABEL].device):
        output = model(**inputs_of(batch))
    losses, objectives = both_losses(task, output.float(), batch, training)
    loss = losses.sum()
    objective = loss if objectives is losses else objectives.sum()
    auxiliary = task.auxiliary_losses(unwrapped(model))
    if auxiliary is None:
        return loss, objective
    return loss, objective + _weighted(auxiliary, batch).sum()


def both_losses(
    task: Task, output: Tensor, batch: Batch, section: TrainingSection
) -> tuple[Tensor, Tensor]:
    """Return the weighted loss of each example: by the labels, and with the teachers' part.

    The first is reported, so that curves of trainings with and without teachers mean the same.
    """
    losses = weighted_losses(task, output, batch, is_simplified=section.simplified)
    distillation = section.distillation
    if distillation is None or ANSWERS not in batch:
        return losses, losses
    taught = _weighted(distillation_losses(task, output, batch, distillation.softening), batch)
    return losses, torch.lerp(losses, taught, distillation.weight)


def distillation_losses(task: Task, output: Tensor, batch: Batch, temperature: float) -> Tensor:
    """Return the loss of each example against the teachers' answers, shape [B].

    For classes the Kullback-Leibler divergence from the model's softened probabilities, times the
    squared temperature (Hinton et al. 2015, section 2); for a regression the task's own loss, with
    the answer as label: the squared error, unless the task chose another.

    Raises:
        BadTaskError: the answers do not have the form of the model's output.
    """
    answers = batch[ANSWERS]
    if task.kind == "regression":
        return task.losses(output, {**batch, LABEL: answers})
    logits = output
    if task.kind == "binary":
        logits = output.reshape(len(output), -1) / temperature
        if answers.ndim != 1 or logits.shape[1] != 1:
            raise _misfit(task, output, answers)
        logits = torch.cat([functional.logsigmoid(-logits), functional.logsigmoid(logits)], dim=1)
        answers = torch.stack([1.0 - answers, answers], dim=1)
    elif answers.shape != output.shape:
        raise _misfit(task, output, answers)
    else:
        logits = (output / temperature).log_softmax(dim=-1)
    divergence = functional.kl_div(logits, answers, reduction="none").sum(dim=-1)
    return divergence * temperature**2


def weighted_losses(
    task: Task, output: Tensor, batch: Batch, *, is_simplified: bool = False
) -> Tensor:
    """Return the loss of each example, times its weight.

    A simplified training minimises the measured loss, without what training adds to it.

    Raises:
        BadTaskError: the task averaged them itself, which would weigh examples wrongly.
    """
    # A loss over the whole batch is no addition: the measured one is another.
    is_measured = is_simplified and not task.needs_whole_batch
    if task.needs_whole_batch and not task.gathers_batch:
        losses = _compare_whole_batch(task, output, batch)
    else:
        losses = (task.losses if is_measured else task.training_losses)(output, batch)
    if losses.shape != (len(batch[LABEL]),):
        raise BadTaskError(
            f"{type(task).__name__}.training_losses must return one loss per example",
            evidence=f"{len(batch[LABEL])} examples gave a tensor of shape {list(losses.shape)}",
            action="use reduction='none' and average over everything but the first dimension",
        )
    return _weighted(losses, batch)


def _compare_whole_batch(task: Task, output: Tensor, batch: Batch) -> Tensor:
    """Return the training loss of each own example, among the examples of all processes.

    Every process computes the loss of the whole batch. Gradients flow back to the process that an
    example came from, so that any number of processes trains alike.
    """
    names = sorted(batch.keys() - {WEIGHT})
    weights = batch.get(WEIGHT, torch.ones(len(output), device=output.device)).float()
    everyones = gather_rows(output, weights, *(batch[name] for name in names))
    outputs, weights, *tensors = everyones.rows
    if len(outputs) == len(output):  # one process
        return task.training_losses(output, batch)
    examples = dict(zip(names, tensors, strict=True))
    if WEIGHT in batch:
        examples[WEIGHT] = weights
    own = torch.arange(len(outputs), device=output.device) - everyones.start
    # A process without rows has one of weight 0, to keep in step: it is compared with nothing.
    kept = (weights > 0).nonzero()[:, 0]
    found = task.training_losses(outputs[kept], {n: each[kept] for n, each in examples.items()})
    own = own[kept]
    is_own = (own >= 0) & (own < len(output))
    losses = torch.zeros(len(output), dtype=found.dtype, device=found.device)
    return losses.index_put((own[is_own],), found[is_own])


def _weighted(losses: Tensor, batch: Batch) -> Tensor:
    return losses * batch[WEIGHT] if WEIGHT in batch else losses


def _misfit(task: Task, output: Tensor, answers: Tensor) -> BadTaskError:
    return BadTaskError(
        f"the teachers' predictions do not fit the output of {type(task).__name__}'s model",
        evidence=f"they have the shape {list(answers.shape)}, the output {list(output.shape)}",
        action="name teachers that were trained for the same classes",
    )
