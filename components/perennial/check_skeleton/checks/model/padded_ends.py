"""Find models that read the last position in a way of its own, where it is mostly padding."""

import torch
from torch import Tensor, nn

from perennial.check_skeleton.checks.model.sequences import find_tokens
from perennial.check_skeleton.models import measure_changes, run_model
from perennial.check_skeleton.subject import Subject, find_padding, select_rows
from perennial.engine.task import Batch

MOST_ROWS = 128
FEWEST_ROWS = 16
FEWEST_POSITIONS, MOST_POSITIONS = 4, 64
# How far the last of a row's tokens moves an answer, beside the median of the others. In healthy
# models up to 1.4 times in full rows, or else more than 3 times in full and in short rows.
PROMINENT, COMMON = 1.8, 1.2


def describe_padded_end(subject: Subject, model: nn.Module) -> str:
    """Describe a last position that moves answers most, and is padding; empty if there is none.

    A model that finds the last token itself, by a mask or its length, moves as much with that of
    short rows; one that treats all positions alike, with none.
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
    ratios = []
    for rows in (full, short):
        batch = select_rows(subject.train, rows)
        moves = _measure_moves(model, batch, name)
        if moves is None:
            return ""
        ratios.append(_compare_last(moves, padding.content[rows]))
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
    """Return the mean move with the last token beside the median one with the tokens before it."""
    last = moves.gather(1, content.clamp(max=moves.shape[1])[:, None] - 1)[:, 0]
    is_before = torch.arange(moves.shape[1]) < content[:, None] - 1
    usual = torch.where(is_before, moves, torch.nan).nanmedian(dim=1).values
    return float((last.nanmean() / usual.nanmean()).nan_to_num(1.0))
