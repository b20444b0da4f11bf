"""Token outputs: the best outputs of models that answer at every position of a sequence.

Such outputs hold millions of numbers, too many to be minimised one by one. But what cross-entropy
allows is known: the frequencies of the tokens are its best constant, and its ideal puts one scale
on every right token, whatever the label smoothing.
"""

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from perennial.check_skeleton.output_domain import FREE, OutputDomain
from perennial.check_skeleton.subject import mean_loss
from perennial.engine.task import LABEL, Batch, Task

LARGEST_SCALE = 40.0  # the rest then has 1e-17 of the probability
# Krichevsky and Trofimov: half a count for every token costs least when the worst comes.
UNSEEN = 0.5


def has_row_per_label(output: Tensor, labels: Tensor) -> bool:
    """Whether an output [B, T, V] has a row of numbers for each of the labels [B, T]."""
    return labels.ndim == 2 and output.ndim == 3 and labels.shape == output.shape[:2]


def is_per_token(output: Tensor, labels: Tensor) -> bool:
    """Whether an output [B, T, V] scores the V codes of which labels [B, T] name one.

    Quantiles, or a mean and a deviation, of the numbers of a forecast have the same form.
    """
    is_code = not labels.is_floating_point() and labels.dtype != torch.bool
    is_formed = has_row_per_label(output, labels) and is_code
    return is_formed and int(labels.max()) < output.shape[-1]


def frequencies(output: Tensor, batch: Batch) -> Tensor:
    """Return the logarithms of the tokens' shares at every position, shape [1, T, V]."""
    length, codes = output.shape[1:]
    labels = batch[LABEL].flatten().long()
    counts = torch.bincount(labels[(labels >= 0) & (labels < codes)], minlength=codes) + UNSEEN
    return (counts / counts.sum()).log().to(output.dtype).expand(1, length, codes)


def right_tokens(
    task: Task, output: Tensor, batch: Batch, domain: OutputDomain = FREE
) -> tuple[Tensor, float]:
    """Return the best output that scores the right token and all others equally, with its loss."""
    labels = wanted_tokens(task, output, batch)
    is_code = ((labels >= 0) & (labels < output.shape[-1])).unsqueeze(-1)
    codes = labels.clamp(0, output.shape[-1] - 1).unsqueeze(-1)
    right = torch.zeros_like(output).scatter_(-1, codes, is_code.to(output.dtype))

    def loss(scale: float) -> float:
        return float(mean_loss(task.losses(domain.outputs(right * scale), batch), batch))

    found = minimize_scalar(loss, bounds=(0.0, LARGEST_SCALE), method="bounded")
    scale = min((float(found.x), LARGEST_SCALE), key=loss)
    return domain.outputs(right * scale), loss(scale)


def wanted_tokens(task: Task, output: Tensor, batch: Batch) -> Tensor:
    """Return the target code of the loss at each position, [B, T]; negative where there is none.

    Taken from its gradient, so that labels may be shifted in `encode` or in `losses`.
    Where the loss is flat around zero, as a clipped one is, the labels themselves.
    """
    free = torch.zeros_like(output, requires_grad=True)
    losses = task.losses(free, batch)
    if not losses.requires_grad:
        return batch[LABEL].long()
    (gradient,) = torch.autograd.grad(losses.sum(), free)
    is_wanted = (gradient != 0).any(dim=2)
    if not bool(is_wanted.any()):
        return batch[LABEL].long()
    return torch.where(is_wanted, gradient.argmin(dim=2), -1)


def counted_tokens(task: Task, output: Tensor, batch: Batch) -> Tensor | None:
    """Return whether each position gets a gradient, [B, T]; None if outputs are not scores."""
    if not is_per_token(output, batch[LABEL]):
        return None
    output = output.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(task.losses(output, batch).sum(), output)
    return (gradient != 0).any(dim=2)
