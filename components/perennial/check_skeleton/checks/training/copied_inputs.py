"""Reconstructions that are copies: a model that restores any input knows nothing of the data."""

import torch
from torch import Tensor

from perennial.check_skeleton.free_outputs import compute_constant_losses, find_training_constant
from perennial.check_skeleton.models import (
    compute_mean_loss,
    shuffle_batches,
    simplify,
    train_model,
)
from perennial.check_skeleton.subject import Subject
from perennial.engine.evaluation.scoring import score_in_parts
from perennial.engine.task import LABEL, Batch, Task, inputs_of

# The share of the variance on half of the principal axes: of numbers that go together, and of those
# that do not. Where these are alike, whoever restores the examples restores all.
TOGETHER, APART = 0.9, 0.75
# Of the loss of a constant. Numbers that are drawn apart from each other are new in every
# combination: a narrow layer, which has learned how numbers go together, loses most of them.
COPIED = 0.2
# Times what is lost of real examples, plus rounding.
ALIKE, ROUNDING = 2.0, 0.01
FEWEST_NUMBERS = 8


def describe_copies(subject: Subject) -> str:
    """Describe how well a model restores numbers that go together at random; empty if badly.

    Only of examples that are their own label, where augmentation adds nothing to be removed.
    """
    task = subject.task
    name = _find_restored_input(subject.validation) if task.reconstructs_inputs else ""
    if not name or type(task).augment is not Task.augment:
        return ""
    constant, real = find_training_constant(subject)[0], subject.validation
    exchanged = _exchange_numbers(real[name], subject.seed)
    if _measure_half(real[name]) < TOGETHER or _measure_half(exchanged) > APART:
        return ""
    model = simplify(subject.build_model())
    steps = subject.settings.training_steps
    train_model(subject, model, shuffle_batches(subject, subject.train, steps))
    shares = []
    for batch in (real, {**real, name: exchanged, LABEL: exchanged.reshape(real[LABEL].shape)}):
        lost = torch.from_numpy(score_in_parts(task, model, batch).losses)
        most = compute_constant_losses(subject, constant, batch).double()
        shares.append(float(compute_mean_loss(lost, batch) / compute_mean_loss(most, batch)))
    of_real, of_exchanged = shares
    if of_exchanged > min(COPIED, ALIKE * of_real + ROUNDING):
        return ""
    return (
        f"{of_real:.1%} of a constant's loss is left on real examples, and {of_exchanged:.1%} on "
        "numbers exchanged among them at random"
    )


def _find_restored_input(batch: Batch) -> str:
    """Return the only input, which equals the label; empty if there is none."""
    if batch[LABEL].ndim < 2:
        return ""
    label, inputs = batch[LABEL].flatten(1), inputs_of(batch)
    name, tensor = next(iter(inputs.items()))
    is_number = len(inputs) == 1 and tensor.is_floating_point() and tensor.ndim > 1
    if (
        not is_number
        or tensor[0].numel() < FEWEST_NUMBERS
        or tensor.flatten(1).shape != label.shape
    ):
        return ""
    return name if torch.allclose(tensor.flatten(1).double(), label.double()) else ""


def _exchange_numbers(tensor: Tensor, seed: int) -> Tensor:
    """Take each position of each example from an example of its own."""
    flat = tensor.flatten(1)
    places = torch.rand(flat.shape, generator=torch.Generator().manual_seed(seed)).argsort(dim=0)
    return flat.gather(0, places).reshape(tensor.shape)


def _measure_half(tensor: Tensor) -> float:
    """Return the share of the variance that half of the principal axes have."""
    flat = tensor.flatten(1).double()
    scale = flat.std(dim=0)
    varying = (flat - flat.mean(dim=0))[:, scale > 0]
    variances = torch.linalg.svdvals(varying) ** 2
    return float(variances[: len(variances) // 2].sum() / variances.sum().clamp_min(1e-12))
