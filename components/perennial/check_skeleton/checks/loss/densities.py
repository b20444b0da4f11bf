"""Recognise losses that are logarithms of densities, or of probabilities of counts."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from perennial.check_skeleton.free_outputs import find_output_domain, probe
from perennial.check_skeleton.models import build_noisy_model, run_model
from perennial.check_skeleton.subject import Subject, once, select_head
from perennial.engine.task import LABEL, Batch

DENSITY = "the probabilities that it gives all labels add up to the same, whatever the output"
OUTPUTS = 8
# Of standard normal noise that is added: outputs of other centres and other spreads.
NOISE = 0.5
# Places on a line that gets wider apart with the distance, up to 548 deviations.
PLACES, FARTHEST = 4001, 7.0
# Beyond the largest count; beyond the smallest and largest amount, as powers of e.
TIMES_LARGEST, POWERS = 20, 7.0
FEW_PARTS, MOST_PARTS = 3, 32
# Of outputs, for each number of the label: scores of all tokens at each position are too many.
MOST_NUMBERS = 4096
# Of angles, hours and phases, whose labels cover nearly all of a turn.
PERIODS, NEARLY_ROUND = (360.0, 2 * math.pi, 24.0, 1.0), 0.9
# Sums over places, and tails beyond them, are that exact.
EXACT = 0.02
# Any error adds up to the same wherever its centre is; a likelihood does for any spread, too.
NARROWER = 0.1
# Of the rows, if others of their numbers may say that a life goes on.
OBSERVED = 0.25


@once
def is_log_density(subject: Subject) -> bool:
    """Whether `exp(-losses)` adds up to the same over all labels, for different outputs.

    To 1, or to another number if the loss lacks a constant. No label has a loss of zero then: the
    lowest loss depends on the unit, or on how likely the most likely count is. Of a label of a few
    numbers, such as hits and shots, one is changed; rows of which the others say that it was not
    observed to its end add up to something else. Days of a forecast each have a probability.
    """
    task = subject.task
    if task.kind not in ("regression", "statistic") or task.scored_together > 1:
        return False
    batch = select_head(probe(subject), OUTPUTS)
    label = batch[LABEL]
    parts = 1 if label.ndim == 1 else label[0].numel()
    if label.ndim > 2 or parts > MOST_PARTS or not bool(label.double().isfinite().all()):
        return False
    with torch.no_grad():
        output = run_model(build_noisy_model(subject), batch)
        if not output.is_floating_point() or parts * output[0].numel() > MOST_NUMBERS:
            return False
        noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(subject.seed))
        domain = find_output_domain(subject)
        output = domain.outputs(domain.free(output) + NOISE * noise)
        numbers = probe(subject)[LABEL].double().reshape(-1, parts)
        if parts <= FEW_PARTS and any(
            _adds_up(subject, output, batch, part, places)
            for part in range(parts)
            for places in _list_places(numbers[:, part])
        ):
            return True
        return parts > 1 and any(
            _adds_up_in_all_parts(subject, output, batch, places)
            for places in _list_places(numbers.flatten())
        )


def _list_places(label: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield labels to add up over, and their weights: counts, amounts, numbers of either sign."""
    least, most = float(label.min()), float(label.max())
    if least >= 0 and bool((label == label.round()).all()):
        # Each of the small ones, and of the large ones some, which stand for those between.
        spaced = np.geomspace(1, most * TIMES_LARGEST + 20, PLACES).astype(np.int64)
        counts = torch.from_numpy(np.unique(spaced)).double()
        counts = torch.cat([torch.zeros(1), counts])
        yield counts, torch.gradient(counts)[0]
    if most <= least:
        return
    positive = label[label > 0].log()
    if least >= 0 and len(positive):
        ends = float(positive.min()) - POWERS, float(positive.max()) + POWERS
        powers = torch.linspace(*ends, PLACES, dtype=torch.float64)
        amounts, weights = powers.exp(), powers.exp() * (powers[1] - powers[0])
        yield amounts, weights
        # Of their logarithms, or of those of one more, whose densities lack the factor.
        yield from ((amounts, weights / (amounts + more)) for more in (0, 1))
        # None at all may have a probability of its own.
        yield torch.cat([amounts, torch.zeros(1)]), torch.cat([weights, torch.ones(1)])
    for period in PERIODS:
        if NEARLY_ROUND * period < most - least <= period:
            turn = torch.linspace(least, least + period, PLACES, dtype=torch.float64)[1:]
            yield turn, torch.full_like(turn, period / len(turn))
    powers = torch.linspace(-FARTHEST, FARTHEST, PLACES, dtype=torch.float64)
    spread = label.std()
    yield label.median() + spread * powers.sinh(), spread * powers.cosh() * (powers[1] - powers[0])


def _adds_up(
    subject: Subject, output: Tensor, batch: Batch, part: int, places: tuple[Tensor, Tensor]
) -> bool:
    """Whether the probabilities of the places add up to the same for the outputs of enough rows."""
    losses = [
        _try_labels(subject, output, batch, (row, part), places[0]) for row in range(len(output))
    ]
    table = torch.stack(losses).neg().exp().nan_to_num(nan=0.0)
    sums, highest = table @ places[1], table.amax(dim=1)
    needed = len(sums) if batch[LABEL][0].numel() == 1 else math.ceil(OBSERVED * len(sums))
    wanted = [1.0]
    if float(highest.max()) > (1 + NARROWER) * float(highest.min()):
        wanted.append(float(sums.median()))
    return any(int(((sums - each).abs() < EXACT * each).sum()) >= needed for each in wanted)


def _adds_up_in_all_parts(
    subject: Subject, output: Tensor, batch: Batch, places: tuple[Tensor, Tensor]
) -> bool:
    """Whether losses are sums, or means, of likelihoods of each number of the label.

    With `n` numbers, the sums over each of them leave the losses of the n - 1 others.
    """
    try:
        own = subject.task.losses(output, batch).double()
    except Exception:  # outputs that cannot be, as matrices that are not positive
        return False
    numbers = batch[LABEL][0].numel()
    left = {scale: int((1 - OBSERVED) * len(own)) for scale in (1, numbers)}
    for row in range(len(own)):
        losses = torch.stack([
            _try_labels(subject, output, batch, (row, part), places[0]) for part in range(numbers)
        ])  # fmt: skip
        for scale in list(left):
            sums = torch.logsumexp(places[1].log() - scale * losses.nan_to_num(nan=torch.inf), 1)
            total = sums.sum() + (numbers - 1) * scale * own[row]
            left[scale] -= not abs(float(total)) < EXACT * numbers
        left = {scale: rows for scale, rows in left.items() if rows >= 0}
    return bool(left)


def _try_labels(
    subject: Subject, output: Tensor, batch: Batch, place: tuple[int, int], values: Tensor
) -> Tensor:
    """Return the losses [N] of a row's output where one number of its label has these values.

    Infinite if the loss rejects them.
    """
    row, part = place
    each = {name: _repeat(tensor, row, len(values)) for name, tensor in batch.items()}
    label = each[LABEL].clone()
    label.reshape(len(label), -1)[:, part] = values.to(label.dtype)
    try:
        losses = subject.task.losses(_repeat(output, row, len(values)), {**each, LABEL: label})
    except Exception:  # labels that cannot be
        return torch.full_like(values, torch.inf)
    return losses.double()


def _repeat(tensor: Tensor, row: int, times: int) -> Tensor:
    """Return one row so many times, without a copy: rows may be pictures."""
    return tensor[row : row + 1].expand(times, *tensor.shape[1:])
