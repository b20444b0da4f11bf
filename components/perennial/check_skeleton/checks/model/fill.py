"""Fill: which tokens of real texts are padding."""

import math

import polars as pl
import torch
from torch import Tensor

from perennial.check_skeleton.checks.model.padding import Padding, padding_of
from perennial.check_skeleton.checks.model.token_positions import tokens_of
from perennial.check_skeleton.free_outputs import output_of
from perennial.check_skeleton.subject import Subject, rows_of
from perennial.engine.task import LABEL, Batch, inputs_of

TEXTS = 16
FEWEST_LISTS = 4
# One token may mark the end of a text, and one more its beginning.
SHORTEST_RUN = 3


def filled_texts(subject: Subject) -> tuple[Batch, Tensor] | None:
    """Return the shortest padded texts, and their padding after its first token, [B, T].

    Padding is the token that other texts end in, or begin with, when they are cut short. None
    where the label is not text, or texts are not padded.
    """
    label = subject.task.columns.label
    rows = subject.train_rows
    if rows[label].dtype != pl.String:
        return None
    rows = rows.filter(pl.col(label).str.len_chars() > 1).sort(pl.col(label).str.len_chars())
    middle = rows.slice(rows.height // 2, TEXTS)
    if middle.height < TEXTS:
        return None
    cut = []
    for place, text in enumerate(middle[label]):
        cut.append(text[: math.ceil(len(text) ** ((place + 1) / TEXTS))])
    rows = rows.head(TEXTS)
    try:
        short = subject.task.encode(middle.with_columns(pl.Series(label, cut, dtype=pl.String)))
        batch = subject.task.encode(rows)
    except Exception:  # a task may reject shorter texts
        return None
    name = tokens_of(batch)
    found = None if name is None or name not in short else padding_of(short[name])
    if found is None or name is None:
        return None
    tokens = batch[name].flip(1) if not found.is_left else batch[name]
    runs = (tokens == found.code).long().cumprod(dim=1).sum(dim=1)
    # A text may end in characters that look like padding.
    own = torch.tensor([len(set(text[:3] if found.is_left else text[-3:])) == 1
                        for text in rows[label]])  # fmt: skip
    filled = (runs >= SHORTEST_RUN) & ~own
    if not bool(filled.any()):
        return None
    inner = Padding(found.code, tokens.shape[1] - runs + 1, found.is_left)
    return rows_of(batch, filled), inner.covers(tokens.shape[1])[filled]


def learned_beyond_lists(subject: Subject) -> float | None:
    """Return the share of positions after short lists of labels that gets a gradient.

    None where labels are not lists of several lengths, with one label for each position of an input
    that is padded in the same way.
    """
    column, labels = subject.train_rows[subject.task.columns.label], subject.train[LABEL]
    is_listed = isinstance(column.dtype, pl.List) and not column.dtype.inner.is_nested()
    if not is_listed or labels.ndim != 2 or subject.task.scored_together > 1:
        return None
    lengths = column.list.len().fill_null(0).cast(pl.Int64).to_torch()
    width = labels.shape[1]
    short = torch.nonzero((lengths > 0) & (lengths <= width - SHORTEST_RUN + 1)).flatten()[:TEXTS]
    if len(short) < FEWEST_LISTS:
        return None
    batch, lengths = rows_of(subject.train, short), lengths[short][:, None]
    output = output_of(subject, batch)
    if output.ndim < 2 or output.shape[1] != width:
        return None
    places = torch.arange(width)
    values = column[short.tolist()].to_list()
    for beyond in (places >= lengths, places < width - lengths):
        if _is_in_place(values, batch[LABEL], beyond) and _is_filled(batch, beyond):
            given = output.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(subject.task.losses(given, batch).sum(), given)
            is_learned = (gradient != 0).reshape(len(short), width, -1).any(dim=2)
            return float(is_learned[beyond].double().mean())
    return None


def _is_in_place(values: list[list[object]], labels: Tensor, beyond: Tensor) -> bool:
    """Whether each value of the lists has one code at its own position, unlike sets of tags."""
    codes: dict[object, float] = {}
    for row, listed in enumerate(values):
        for value, code in zip(listed, labels[row][~beyond[row]].tolist(), strict=False):
            if codes.setdefault(value, code) != code:
                return False
    listed_values = sum(len(each) for each in values)
    return len(set(codes.values())) > 1 and 2 * len(codes) <= listed_values


def _is_filled(batch: Batch, beyond: Tensor) -> bool:
    """Whether an input with a position for each label has one value after the ends of lists."""
    for tensor in inputs_of(batch).values():
        if tensor.shape[:2] == beyond.shape:
            flat = tensor.reshape(*beyond.shape, -1)
            fill, content = flat[beyond], flat[~beyond]
            if bool((fill == fill[:1]).all()) and bool((content != fill[:1]).any()):
                return True
    return False
