"""Fill: which tokens of real texts stand there only because the texts are short."""

import math

import polars as pl
import torch
from torch import Tensor

from components.check_skeleton.checks.model.padding import Padding, padding_of
from components.check_skeleton.checks.model.token_positions import tokens_of
from components.check_skeleton.subject import Subject, rows_of
from components.engine.task import Batch

TEXTS = 16
# One token may mark the end of a text by right, and one more its beginning.
SHORTEST_RUN = 3


def filled_texts(subject: Subject) -> tuple[Batch, Tensor] | None:
    """The shortest texts that are filled up, and the fill beyond the first token of it, [B, T].

    What fills them is what other texts end in, or begin with, when they are cut short. None
    where the label is no text, or texts are not filled up.
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
    except Exception:  # a task may take no shorter texts
        return None
    name = tokens_of(batch)
    found = None if name is None or name not in short else padding_of(short[name])
    if found is None or name is None:
        return None
    tokens = batch[name].flip(1) if not found.is_left else batch[name]
    runs = (tokens == found.code).long().cumprod(dim=1).sum(dim=1)
    # A text may end in what looks like fill.
    own = torch.tensor([len(set(text[:3] if found.is_left else text[-3:])) == 1
                        for text in rows[label]])  # fmt: skip
    filled = (runs >= SHORTEST_RUN) & ~own
    if not bool(filled.any()):
        return None
    inner = Padding(found.code, tokens.shape[1] - runs + 1, found.is_left)
    return rows_of(batch, filled), inner.covers(tokens.shape[1])[filled]
