"""Recognise losses that are logarithms of densities, or of probabilities of counts."""

from collections.abc import Iterator

import torch
from torch import Tensor

from perennial.check_skeleton.free_outputs import find_output_domain, probe
from perennial.check_skeleton.models import build_noisy_model, run_model
from perennial.check_skeleton.subject import Subject, select_head
from perennial.engine.task import LABEL, Batch

DENSITY = "the probabilities that it gives all labels add up to 1"
OUTPUTS = 8
# Of standard normal noise that is added: outputs of other centres and other spreads.
NOISE = 0.5
# Places on a line that gets wider apart with the distance, up to 548 deviations; whole numbers.
PLACES, FARTHEST, MOST_COUNTS = 4001, 7.0, 4000
# Beyond the largest count; beyond the smallest and largest amount, as powers of e.
TIMES_LARGEST, POWERS = 20, 7.0
MOST_PARTS = 3
# Sums over places, and tails beyond them, are that exact.
EXACT = 0.02
# Of the rows, if others of their numbers may say that a life goes on.
OBSERVED = 0.25


def is_log_density(subject: Subject) -> bool:
    """Whether `exp(-losses)` adds up to 1 over all labels, for different outputs of the model.

    No label has a loss of zero then: the lowest loss depends on the unit, or on how likely the most
    likely count is. Of a label of several numbers, such as hits and shots, one is changed; rows of
    which the others say that it was not observed to its end add up to something else.
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
        if not output.is_floating_point():
            return False
        noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(subject.seed))
        domain = find_output_domain(subject)
        output = domain.outputs(domain.free(output) + NOISE * noise)
        return any(
            _adds_up(subject, output, batch, part, places)
            for part in range(parts)
            for places in _list_places(label.reshape(len(label), -1)[:, part].double())
        )


def _list_places(label: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield labels to add up over, and their weights: counts, amounts, numbers of either sign."""
    least, most = float(label.min()), float(label.max())
    if least >= 0 and bool((label == label.round()).all()):
        counts = torch.arange(min(int(most) * TIMES_LARGEST + 20, MOST_COUNTS)).double()
        yield counts, torch.ones_like(counts)
    if most <= least:
        return
    positive = label[label > 0].log()
    if least >= 0 and len(positive):
        ends = float(positive.min()) - POWERS, float(positive.max()) + POWERS
        powers = torch.linspace(*ends, PLACES, dtype=torch.float64)
        amounts, weights = powers.exp(), powers.exp() * (powers[1] - powers[0])
        yield amounts, weights
        # None at all may have a probability of its own.
        yield torch.cat([amounts, torch.zeros(1)]), torch.cat([weights, torch.ones(1)])
    powers = torch.linspace(-FARTHEST, FARTHEST, PLACES, dtype=torch.float64)
    spread = label.std()
    yield label.median() + spread * powers.sinh(), spread * powers.cosh() * (powers[1] - powers[0])


def _adds_up(
    subject: Subject, output: Tensor, batch: Batch, part: int, places: tuple[Tensor, Tensor]
) -> bool:
    """Whether the probabilities of the places add up to 1, for the outputs of enough rows."""
    is_single = batch[LABEL][0].numel() == 1
    left = 0 if is_single else int((1 - OBSERVED) * len(output))
    for row in range(len(output)):
        each = {name: _repeat(tensor, row, len(places[0])) for name, tensor in batch.items()}
        label = each[LABEL].clone()
        label.reshape(len(label), -1)[:, part] = places[0].to(label.dtype)
        try:
            repeated = _repeat(output, row, len(places[0]))
            losses = subject.task.losses(repeated, {**each, LABEL: label})
        except Exception:  # a loss may reject labels that cannot be
            return False
        chances = losses.double().neg().exp().nan_to_num(nan=0.0)
        left -= abs(float(chances @ places[1]) - 1) >= EXACT
        if left < 0:
            return False
    return True


def _repeat(tensor: Tensor, row: int, times: int) -> Tensor:
    """Return one row so many times, without a copy: rows may be pictures."""
    return tensor[row : row + 1].expand(times, *tensor.shape[1:])
