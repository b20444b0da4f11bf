"""Likelihoods: losses that are logarithms of probabilities, and the outputs they stand for."""

import torch
from torch import Tensor

from perennial.check_skeleton.free_outputs import compute_output, find_best_outputs, probe
from perennial.check_skeleton.minimum import INSIDE
from perennial.check_skeleton.models import Losses
from perennial.check_skeleton.subject import Subject
from perennial.engine.task import LABEL, Batch

# Outputs of one number run from -4 to 4, where probabilities run from 2 to 98 %.
WIDEST = 4.0
APART = 0.05
RUN_AWAY = 6.0
MOST_CLASSES = 32
# So many outputs for one number are probabilities of places, of which `predict` reads the highest.
FEWEST_BINS = 8
SAME_LOSS = 0.01


def is_likelihood(subject: Subject, losses: Losses) -> bool:
    """Whether each loss is the logarithm of a probability; class weights would scale some."""
    batch = probe(subject)
    outputs = make_different_outputs(subject, batch)
    return find_balanced_probabilities(subject, losses, outputs, batch) is not None


def find_balanced_probabilities(
    subject: Subject, losses: Losses, outputs: Tensor, batch: Batch
) -> Tensor | None:
    """Return label probabilities [B, C] for which each output is optimal; None if unknown.

    For these, the gradients for the labels, weighted by their probabilities, add up to zero.
    """
    if subject.task.kind == "regression" or outputs.ndim > 2:
        return None
    labels, is_binary = batch[LABEL], subject.task.kind == "binary"
    classes = 2 if is_binary else int(outputs.shape[1])
    if classes > MOST_CLASSES or (not is_binary and int(labels.max()) >= classes):
        return None
    gradients, costs = [], []
    try:
        for code in range(classes):
            free = outputs.clone().requires_grad_()
            found = losses(free, {**batch, LABEL: torch.full_like(labels, code)})
            (gradient,) = torch.autograd.grad(found.sum(), free)
            gradients.append(gradient.double().reshape(len(gradient), -1))
            costs.append(found.detach().double())
    except Exception:  # a loss may get its labels elsewhere, or accept probabilities only
        return None
    each, cost = torch.stack(gradients, dim=1), torch.stack(costs, dim=1)  # [B, C, D], [B, C]
    if not bool(torch.isfinite(each).all()) or not bool(each.any()):
        return None
    products = each @ each.transpose(1, 2)
    ridge = 1e-9 * products.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
    solved = torch.linalg.solve(
        products + (ridge + 1e-30) * torch.eye(classes), torch.ones(len(each), classes).double()
    )
    balanced = solved / solved.sum(dim=1, keepdim=True)
    # Focal losses, margins, smoothed labels and class weights are not likelihoods, by design.
    is_clear = balanced > INSIDE  # others are rounded
    difference = (balanced.clamp_min(INSIDE).log() + cost)[is_clear]
    is_same = difference.abs() <= SAME_LOSS * (1 + cost[is_clear].abs())
    return balanced if float(is_same.double().mean()) > 0.95 else None


def make_different_outputs(subject: Subject, batch: Batch) -> Tensor:
    """Return as many outputs as examples, all different and none extreme."""
    template = compute_output(subject, batch)
    if subject.task.kind == "regression":
        ideal = find_best_outputs(subject).ideal.reshape(len(template), -1)
        if ideal.shape[1] >= FEWEST_BINS:
            return ideal.reshape(template.shape)
        places = torch.linspace(0.02, 0.98, len(template), dtype=ideal.dtype)
        # A search runs away where more is never worse, as beyond the limit of a censored label.
        away = (ideal - ideal.median(dim=0).values).abs()
        most = RUN_AWAY * away.median(dim=0).values
        near = ((away <= most) | (most == 0)).all(dim=1)
        spread = torch.quantile(ideal[near] if bool(near.any()) else ideal, places, dim=0)
        # Labels that repeat, such as star ratings, would make outputs equal.
        apart = APART * places[:, None] * (spread[-1] - spread[0])
        return (spread + apart).reshape(template.shape)
    if template[0].numel() == 1:
        return torch.linspace(-WIDEST, WIDEST, len(template)).reshape(template.shape)
    generator = torch.Generator().manual_seed(subject.seed)
    return 2 * torch.randn(template.shape, generator=generator)
