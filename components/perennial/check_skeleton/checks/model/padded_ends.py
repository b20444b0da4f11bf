"""Find models that read the last position in a way of its own, where it is mostly padding."""

import torch
from torch import Tensor, nn

from perennial.check_skeleton.checks.model.sequences import find_tokens
from perennial.check_skeleton.models import build_noisy_model, measure_changes, run_model
from perennial.check_skeleton.subject import Subject, find_padding, select_rows
from perennial.engine.task import Batch

MOST_ROWS = 32
FEWEST_ROWS = 16
FEWEST_POSITIONS, MOST_POSITIONS = 4, 64
# How far the last of a row's tokens moves an answer, beside the median of the others and the one
# before it. Models that read the last position measured more than 6 in full rows, and 1.1 in
# short ones; others up to 2 in full rows, or about as much in both.
PROMINENT, COMMON = 3.0, 1.5
# One model may have a large weight at the last position by chance; the mean of several has not.
MODELS = 4


def describe_padded_end(subject: Subject) -> str:
    """Describe a last position that moves answers most, and is padding; empty if there is none.

    A model that finds the last token itself, by a mask or its length, moves as much with that of
    short rows; one that treats all positions alike, with none; recurrence with the one before it.
    """
    name = find_tokens(subject.train)
    padding = None if name is None else find_padding(subject.train[name])
    if name is None or padding is None or padding.is_left:
        return ""
    length = subject.train[name].shape[1]
    full = torch.nonzero(padding.content >= length)[:MOST_ROWS, 0]
    is_short = (padding.content >= FEWEST_POSITIONS) & (padding.content < length)
    short = torch.nonzero(is_short)[:MOST_ROWS, 0]
    if min(len(full), len(short)) < FEWEST_ROWS or length > MOST_POSITIONS:
        return ""
    moves, ratios = [torch.zeros(1), torch.zeros(1)], [0.0, 0.0]
    for repeat in range(MODELS):
        model = build_noisy_model(subject.reseeded(repeat))
        for which, rows in enumerate((full, short)):
            moved = _measure_moves(model, select_rows(subject.train, rows), name)
            if moved is None:
                return ""
            moves[which] = moves[which] + moved
            ratios[which] = _compare_last(moves[which], padding.content[rows])
        if not (ratios[0] >= PROMINENT and ratios[1] <= COMMON):
            return ""
    return (
        f"the last token of {name} moves the output {ratios[0]:.1f} times as far as others in rows "
        f"of {length}, and {ratios[1]:.1f} times in shorter ones, which end in padding"
    )


def _measure_moves(model: nn.Module, batch: Batch, name: str) -> Tensor | None:
    """Return how far the outputs move when another row's token stands at each position, [B, T]."""
    before, moves = run_model(model, batch), []
    if before.ndim > 2:
        return None
    for place in range(batch[name].shape[1]):
        changed = batch[name].clone()
        changed[:, place] = changed[:, place].roll(1, 0)
        moved = measure_changes(before, run_model(model, {**batch, name: changed}))
        is_other = changed[:, place] != batch[name][:, place]
        moves.append(torch.where(is_other, moved.reshape(len(before), -1).mean(dim=1), torch.nan))
    return torch.stack(moves, dim=1)


def _compare_last(moves: Tensor, content: Tensor) -> float:
    """Return the mean move with the last token beside that with the tokens before it.

    Of these, the median one or the one right before it, which of them moves more.
    """
    places = content.clamp(max=moves.shape[1])[:, None] - 1
    last, neighbour = (moves.gather(1, places - back)[:, 0] for back in (0, 1))
    is_before = torch.arange(moves.shape[1]) < places
    usual = torch.where(is_before, moves, torch.nan).nanmedian(dim=1).values
    others = torch.fmax(usual.nanmean(), neighbour.nanmean())
    return float((last.nanmean() / others).nan_to_num(1.0))
