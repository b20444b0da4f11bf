"""Mixing: the share of each row in an augmented example, compared with that in its label."""

import torch
from torch import Tensor

from perennial.check_skeleton.made_up_inputs import made_up
from perennial.check_skeleton.models import run_model
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


def judge_mixing(judge: Judge, subject: Subject, mixed: int) -> CheckResult | None:
    """Judge whether labels are mixed like their rows; None if no mistake was found.

    `mixed` is the number of examples that seem to mix several rows while their label is of one.
    """
    batch, other = exchange_rows(subject)
    with made_up("batches with one row exchanged in one tensor"):
        found = _observe_mixing(subject.task, batch, other, subject.seed)
    ordered, turned, blended, unlabelled, are_halves = found
    if turned >= CLEAR_EXAMPLES and turned >= MOST_OF * (ordered + turned):
        return judge.failed(
            f"{turned} of {turned + ordered} augmented examples contain most of one row, but most "
            "of another row's label",
            hint="the shares of the labels are exchanged: mix them by the same share as the inputs",
        )
    hint = (
        "mix every tensor and the labels in the same proportion; otherwise the loss penalises "
        "correct predictions"
    )
    # Rows are blended in random shares while their labels stay unmixed.
    if unlabelled >= CLEAR_EXAMPLES and unlabelled >= MOST_OF * blended and not are_halves:
        with made_up("augmented labels of other rows"):
            is_in_loss = is_other_label_in_loss(subject, batch, subject.seed)
        if not is_in_loss:
            return judge.failed(
                f"{unlabelled} of {blended} augmented examples blend two rows with different "
                "labels, but have the label of one",
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
    if (labels := batch[LABEL]).ndim == 1:
        # The next different label; the own one if there is none.
        differs, turns = labels[None, :] != labels[:, None], torch.arange(len(labels))
        ahead = (turns[None, :] - turns[:, None]) % len(labels)
        other[LABEL] = labels[torch.where(differs, ahead, len(labels)).argmin(dim=1)][:rows]
    return select_head(batch, rows), other


def _observe_mixing(
    task: Task, batch: Batch, other: Batch, seed: int
) -> tuple[int, int, int, int, bool]:
    """Measure how two rows of different labels are mixed over several draws.

    The examples of `other` replace those of `batch` in turn.

    Returns:
        Examples whose inputs and label take their larger share from the same row; those that take
        it from different rows; convex combinations; those of them whose label is one row's;
        whether all of them are made of two equal parts. All 0 where shares are unknown.
    """
    nothing = 0, 0, 0, 0, False
    floats = {n: t for n, t in inputs_of(batch).items() if t.is_floating_point()}
    name = max(floats, key=lambda each: floats[each][0].numel(), default=None)
    if name is None or batch[LABEL].ndim != 1:
        return nothing
    counts, smaller = torch.zeros(4, dtype=torch.long), list[float]()
    for draw in range(DRAWS):
        found = _measure_shares(task, batch, other, name, seed + draw)
        if found is None:
            return nothing
        seen, parts = _count_mixed(*found, batch[LABEL])
        counts += seen
        smaller += parts
    ordered, turned, blended, unlabelled = counts.tolist()
    halves = all(abs(share - HALF) < ROUNDING for share in smaller)
    return ordered, turned, blended, unlabelled, halves


def augment_copy(
    task: Task, batch: Batch, seed: int, generator: torch.Generator | None = None
) -> Batch:
    """Return the augmented batch; the given one stays unchanged."""
    copied = {name: tensor.clone() for name, tensor in batch.items()}
    return task.augment(copied, (generator or torch.Generator()).manual_seed(seed))


def _measure_shares(
    task: Task, batch: Batch, other: Batch, name: str, seed: int
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the share of each row [B] in each augmented example's input and label, [B, B].

    NaN where it is unknown. The third tensor tells whether every number of the example has that
    share of the row's.
    """
    rows, generator = len(batch[LABEL]), torch.Generator()
    first = augment_copy(task, batch, seed, generator)
    if first[name].shape != batch[name].shape or first.keys() != batch.keys():
        return None
    state = generator.get_state()
    inputs, labels = torch.full((rows, rows), torch.nan), torch.full((rows, rows), torch.nan)
    is_blend = torch.zeros(rows, rows, dtype=torch.bool)
    for row in range(rows):
        is_it = torch.arange(rows) == row
        changed = {**batch, name: _exchange(batch[name], other[name], is_it)}
        moved = augment_copy(task, changed, seed, generator)[name]
        if torch.equal(generator.get_state(), state):
            given = (other[name][row] - batch[name][row]).double().flatten().abs().sort().values
            taken = (moved - first[name]).double().reshape(rows, -1).abs().sort(dim=1).values
            share = taken.norm(dim=1) / given.norm().clamp_min(1e-12)
            inputs[:, row] = share.float()
            off = (taken - share[:, None] * given).norm(dim=1) / taken.norm(dim=1).clamp_min(1e-12)
            is_blend[:, row] = off < ROUNDING
        changed = {**batch, LABEL: _exchange(batch[LABEL], other[LABEL], is_it)}
        moved = augment_copy(task, changed, seed, generator)[LABEL]
        step = float((other[LABEL][row] - batch[LABEL][row]).abs())
        if torch.equal(generator.get_state(), state) and step:
            change = (moved - first[LABEL]).double().reshape(rows, -1).norm(dim=1)
            is_same_form = first[LABEL].ndim == 1
            labels[:, row] = (change / (step if is_same_form else 2**0.5)).float()
    return inputs, labels, is_blend


def _exchange(tensor: Tensor, other: Tensor, is_it: Tensor) -> Tensor:
    return torch.where(is_it.reshape(-1, *[1] * (tensor.ndim - 1)), other, tensor)


def _count_mixed(
    shares: Tensor, label_shares: Tensor, is_blend: Tensor, labels: Tensor
) -> tuple[Tensor, list[float]]:
    """Count ordered, turned, blended and unlabelled examples; list blends' smaller shares."""
    counts, smaller = torch.zeros(4, dtype=torch.long), list[float]()
    for row in range(len(labels)):
        inputs, given = shares[row], label_shares[row]
        parts = torch.nonzero(inputs > LEAST_SHARE).flatten()
        if bool(inputs.isnan().any()) or len(parts) != 2 or bool(given[parts].isnan().any()):
            continue
        one, two = parts[inputs[parts].argsort(descending=True)].tolist()
        if labels[one] == labels[two]:
            continue
        first, second = (given[[one, two]] / given.sum()).tolist()
        if float(inputs[one] - inputs[two]) > CLEARLY_MORE:
            counts[0] += int(first - second > CLEARLY_MORE)
            counts[1] += int(second - first > CLEARLY_MORE and min(first, second) > 0)
        is_convex = abs(float(inputs.sum()) - 1) < ROUNDING
        if is_convex and bool(is_blend[row, [one, two]].all()):
            counts[2] += 1
            counts[3] += int((given > 0).sum() == 1)
            smaller.append(float(inputs[two]))
    return counts, smaller


def is_other_label_in_loss(subject: Subject, batch: Batch, seed: int) -> bool:
    """Whether the training loss of an augmented example changes with the labels of others.

    A task may keep its random shares, and mix losses instead of labels.
    """
    losses = subject.task.training_losses
    augmented = augment_copy(subject.task, batch, seed)
    output = run_model(subject.build_model(), augmented)
    before, rows = losses(output, augmented), torch.arange(len(output))
    turned = select_rows(augmented, rows.roll(1))[LABEL]
    for row in range(min(COMPARED_LOSSES, len(rows))):
        labels = _exchange(turned, augmented[LABEL], rows == row)
        if not torch.isclose(losses(output, {**augmented, LABEL: labels})[row], before[row]):
            return True
    return False
