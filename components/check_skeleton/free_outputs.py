"""Free outputs: what the loss allows, whatever the model.

A free tensor stands in for the model's output; what no output at all can reach, no model will.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from components.check_skeleton.subject import Subject, mean_loss, rows_of
from components.check_skeleton.token_outputs import frequencies, is_per_token, right_tokens
from components.engine.task import LABEL, Batch, Task, inputs_of

PROBED_ROWS = 256
Losses = Callable[[Tensor, Batch], Tensor]
"""A task's `losses` or `training_losses`."""


@dataclass(frozen=True)
class FreeOutputs:
    """The best outputs for one batch.

    Attributes:
        constant: The best output that is the same for every example, shape [1, …].
        ideal: The best output for each example, shape [B, …].
        constant_loss: Mean loss of `constant`.
        floor: Mean loss of `ideal`.
    """

    constant: Tensor
    ideal: Tensor
    constant_loss: float
    floor: float


def free_outputs(task: Task, output: Tensor, batch: Batch) -> FreeOutputs:
    """Minimise the loss over the outputs themselves.

    Args:
        task: Whose loss.
        output: The model's output for the batch, for its shape.
        batch: Holds the labels.
    """
    constant, constant_loss = best_constant(task, output, batch)
    if is_per_token(output, batch[LABEL]):
        ideal, floor = right_tokens(task, output, batch)
    else:
        # Examples that are compared get no gradient where all outputs are alike.
        start = output if task.scored_together > 1 else constant.expand_as(output)
        ideal, floor = minimised(task.losses, start.clone(), batch)
    return FreeOutputs(constant, ideal, constant_loss, floor)


def best_constant(task: Task, output: Tensor, batch: Batch) -> tuple[Tensor, float]:
    """The best output that is the same for every example, shape [1, …], and its mean loss."""
    if is_per_token(output, batch[LABEL]):
        constant = frequencies(output, batch)
        return constant, float(mean_loss(constant_losses(task, constant, batch), batch))
    return minimised(task.losses, torch.zeros_like(output[:1]), batch)


def constant_losses(task: Task, constant: Tensor, batch: Batch) -> Tensor:
    """The loss of each example under one output for all, shape [N], some at a time."""
    parts = []
    with torch.no_grad():
        for start in range(0, len(batch[LABEL]), task.scoring_rows):
            part = rows_of(batch, slice(start, start + task.scoring_rows))
            shape = (len(part[LABEL]), *constant.shape[1:])
            parts.append(task.losses(constant.expand(shape), part))
    return torch.cat(parts)


def best_outputs(subject: Subject) -> FreeOutputs:
    """The free outputs for the probed examples."""
    batch = probe(subject)
    return free_outputs(subject.task, output_of(subject, batch), batch)


def probe(subject: Subject) -> Batch:
    """Examples with different inputs and, in turn, different labels."""
    return subject.balanced(min(PROBED_ROWS, subject.task.scoring_rows))


def output_of(subject: Subject, batch: Batch) -> Tensor:
    """The untrained model's output in evaluation mode."""
    with torch.no_grad():
        output: Tensor = subject.build_model().eval()(**inputs_of(batch))
    return output


def minimised(losses: Losses, start: Tensor, batch: Batch) -> tuple[Tensor, float]:
    """Outputs, broadcast over the batch, at the smallest mean loss found, and that loss."""
    rows = len(batch[LABEL])

    def objective(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        free = torch.from_numpy(values).to(start.dtype).reshape(start.shape).requires_grad_()
        loss = mean_loss(losses(free.expand(rows, *start.shape[1:]), batch), batch)
        (gradient,) = torch.autograd.grad(loss, free)
        return float(loss.detach()), gradient.double().flatten().numpy()

    found = minimize(
        objective, start.double().flatten().numpy(), jac=True, method="L-BFGS-B",
        options={"maxiter": 100, "ftol": 0.0, "gtol": 1e-9},
    )  # fmt: skip
    return torch.from_numpy(found.x).to(start.dtype).reshape(start.shape), float(found.fun)
