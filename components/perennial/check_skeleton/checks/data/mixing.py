"""Mixing: the share of each row in an augmented example, compared with that in its label."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from perennial.check_skeleton.made_up_inputs import made_up
from perennial.check_skeleton.registry import Judge
from perennial.check_skeleton.subject import Subject, select_head, select_rows
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import LABEL, Batch, Task, inputs_of

TRACED_ROWS = 16
DRAWS = 4
# Shares add up to 1 in a convex combination; an addition, such as background noise, adds more.
ROUNDING = 0.02
LEAST_SHARE = 0.05
# Shares of two rows that differ by less may be in either order: for cut pictures, shares are
# estimated from how much of the difference lies inside the cut.
CLEARLY_MORE = 0.2
CLEAR_EXAMPLES = 5
MOST_OF = 0.8
HALF = 0.5
COMPARED_LOSSES = 4


@dataclass(frozen=True)
class Shares:
    """The share of each row in an augmented batch.

    Attributes:
        inputs: Share of row [B] in the widest input of each example [B]; NaN if unknown.
        labels: The same in its label.
        is_blend: Whether every number of an example holds that share of the row's.
    """

    inputs: Tensor
    labels: Tensor
    is_blend: Tensor


@dataclass(frozen=True)
class Mixing:
    """Counts of examples that mix two rows of different labels.

    Attributes:
        ordered: Examples whose inputs and label take their larger share from the same row.
        turned: Examples whose inputs and label take it from different rows.
        blended: Convex combinations of two rows.
        unlabelled: Those of them whose label is one row's.
        are_halves: Whether all of them are made of two equal parts.
    """

    ordered: int
    turned: int
    blended: int
    unlabelled: int
    are_halves: bool

    @property
    def is_backwards(self) -> bool:
        """Whether labels are mixed with the shares exchanged."""
        clear = self.ordered + self.turned
        return self.turned >= CLEAR_EXAMPLES and self.turned >= MOST_OF * clear

    @property
    def is_unlabelled(self) -> bool:
        """Whether rows are blended in random shares while their labels stay unmixed."""
        return (
            self.unlabelled >= CLEAR_EXAMPLES
            and self.unlabelled >= MOST_OF * self.blended
            and not self.are_halves
        )


def judge_mixing(judge: Judge, subject: Subject, mixed: int) -> CheckResult | None:
    """Judge whether labels are mixed like their rows; None if no mistake was found.

    Args:
        judge: The check's judge.
        subject: The subject whose augmentation mixes rows.
        mixed: Number of examples that seem to mix several rows while their label is of one.
    """
    batch, other = exchange_rows(subject)
    with made_up("batches with one row exchanged in one tensor"):
        mixing = observe_mixing(subject.task, batch, other, subject.seed)
    if mixing and mixing.is_backwards:
        return judge.failed(
            f"{mixing.turned} of {mixing.turned + mixing.ordered} augmented examples contain most "
            "of one row, but most of another row's label",
            hint="the shares of the labels are exchanged: mix them by the same share as the inputs",
        )
    hint = (
        "mix every tensor and the labels in the same proportion; otherwise the loss penalises "
        "correct predictions"
    )
    if mixing and mixing.is_unlabelled:
        with made_up("augmented labels of other rows"):
            is_in_loss = is_other_label_in_loss(subject, batch, subject.seed)
        if not is_in_loss:
            return judge.failed(
                f"{mixing.unlabelled} of {mixing.blended} augmented examples blend two rows with "
                "different labels, but have the label of one",
                hint=hint,
            )
        return None
    if mixed:
        return judge.warned(
            f"{mixed} of {len(batch[LABEL])} augmented examples mix several rows, but their labels "
            "do not",
            hint=hint,
        )
    return None


def exchange_rows(subject: Subject) -> tuple[Batch, Batch]:
    """Return examples, and as many others, each with another label."""
    batch = subject.balanced(2 * TRACED_ROWS)
    rows = min(TRACED_ROWS, len(batch[LABEL]) // 2)
    other = select_rows(batch, slice(rows, 2 * rows))
    if batch[LABEL].ndim == 1:
        other[LABEL] = _find_other_labels(batch[LABEL])[:rows]
    return select_head(batch, rows), other


def _find_other_labels(labels: Tensor) -> Tensor:
    """Return for each label the next different one; itself if there is none."""
    differs = labels[None, :] != labels[:, None]
    turns = torch.arange(len(labels))
    ahead = (turns[None, :] - turns[:, None]) % len(labels)
    return labels[torch.where(differs, ahead, len(labels)).argmin(dim=1)]


def observe_mixing(task: Task, batch: Batch, other: Batch, seed: int) -> Mixing | None:
    """Measure how rows and labels are mixed over several draws; None if shares are unknown.

    Args:
        task: The task that augments.
        batch: Examples of one label each.
        other: As many examples, which replace those of `batch` in turn.
        seed: The seed of the draws.
    """
    floats = {n: t for n, t in inputs_of(batch).items() if t.is_floating_point()}
    name = max(floats, key=lambda each: floats[each][0].numel(), default=None)
    if name is None or batch[LABEL].ndim != 1:
        return None
    counts, smaller = torch.zeros(4, dtype=torch.long), list[float]()
    for draw in range(DRAWS):
        found = _measure_shares(task, batch, other, (name, seed + draw))
        if found is None:
            return None
        seen, parts = _count_mixed(found, batch[LABEL])
        counts += seen
        smaller += parts
    ordered, turned, blended, unlabelled = counts.tolist()
    halves = all(abs(share - HALF) < ROUNDING for share in smaller)
    return Mixing(ordered, turned, blended, unlabelled, halves)


def _measure_shares(
    task: Task, batch: Batch, other: Batch, drawn: tuple[str, int]
) -> Shares | None:
    name, seed = drawn
    rows, generator = len(batch[LABEL]), torch.Generator()

    def augmented(changed: Batch) -> Batch:
        copied = {key: tensor.clone() for key, tensor in changed.items()}
        return task.augment(copied, generator.manual_seed(seed))

    first = augmented(batch)
    if first[name].shape != batch[name].shape or first.keys() != batch.keys():
        return None
    state = generator.get_state()
    inputs, labels = torch.full((rows, rows), torch.nan), torch.full((rows, rows), torch.nan)
    is_blend = torch.zeros(rows, rows, dtype=torch.bool)
    for row in range(rows):
        is_it = torch.arange(rows) == row
        moved = augmented({**batch, name: _exchange(batch[name], other[name], is_it)})[name]
        if torch.equal(generator.get_state(), state):
            given = (other[name][row] - batch[name][row]).double().flatten().abs().sort().values
            taken = (moved - first[name]).double().flatten(1).abs().sort(dim=1).values
            share = taken.norm(dim=1) / given.norm().clamp_min(1e-12)
            inputs[:, row] = share.float()
            off = (taken - share[:, None] * given).norm(dim=1) / taken.norm(dim=1).clamp_min(1e-12)
            is_blend[:, row] = off < ROUNDING
        moved = augmented({**batch, LABEL: _exchange(batch[LABEL], other[LABEL], is_it)})[LABEL]
        step = float((other[LABEL][row] - batch[LABEL][row]).abs())
        if torch.equal(generator.get_state(), state) and step:
            change = (moved - first[LABEL]).double().reshape(rows, -1).norm(dim=1)
            is_same_form = first[LABEL].ndim == 1
            labels[:, row] = (change / (step if is_same_form else 2**0.5)).float()
    return Shares(inputs, labels, is_blend)


def _exchange(tensor: Tensor, other: Tensor, is_it: Tensor) -> Tensor:
    return torch.where(is_it.reshape(-1, *[1] * (tensor.ndim - 1)), other, tensor)


def _count_mixed(found: Shares, labels: Tensor) -> tuple[Tensor, list[float]]:
    """Count ordered, turned, blended and unlabelled examples; list blends' smaller shares."""
    counts, smaller = torch.zeros(4, dtype=torch.long), list[float]()
    for row in range(len(labels)):
        inputs, given = found.inputs[row], found.labels[row]
        parts = torch.nonzero(inputs > LEAST_SHARE).flatten()
        if bool(inputs.isnan().any()) or len(parts) != 2 or bool(given[parts].isnan().any()):
            continue
        one, two = parts[inputs[parts].argsort(descending=True)].tolist()
        if labels[one] == labels[two]:
            continue
        apart, label_shares = float(inputs[one] - inputs[two]), given[[one, two]] / given.sum()
        if apart > CLEARLY_MORE:
            counts[0] += int(label_shares[0] - label_shares[1] > CLEARLY_MORE)
            counts[1] += int(
                label_shares[1] - label_shares[0] > CLEARLY_MORE and float(label_shares.min()) > 0
            )
        is_convex = abs(float(inputs.sum()) - 1) < ROUNDING
        if is_convex and bool(found.is_blend[row, [one, two]].all()):
            counts[2] += 1
            counts[3] += int((given > 0).sum() == 1)
            smaller.append(float(inputs[two]))
    return counts, smaller


def is_other_label_in_loss(subject: Subject, batch: Batch, seed: int) -> bool:
    """Whether the training loss of an augmented example changes with the labels of others.

    A task may keep its random shares, and mix losses instead of labels.
    """
    task = subject.task
    copied = {key: tensor.clone() for key, tensor in batch.items()}
    augmented = task.augment(copied, torch.Generator().manual_seed(seed))
    output = subject.build_model()(**inputs_of(augmented)).detach()
    measured: Callable[[Batch], Tensor] = lambda some: task.training_losses(output, some)  # noqa: E731
    before, rows = measured(augmented), torch.arange(len(output))
    turned = select_rows(augmented, rows.roll(1))[LABEL]
    for row in range(min(COMPARED_LOSSES, len(rows))):
        labels = _exchange(turned, augmented[LABEL], rows == row)
        if not torch.isclose(measured({**augmented, LABEL: labels})[row], before[row]):
            return True
    return False
