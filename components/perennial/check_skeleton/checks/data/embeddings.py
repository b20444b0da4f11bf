"""Embeddings: the codes looked up in a table must fit the way it was built."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from perennial.check_skeleton.checks.model.padding import padding_of
from perennial.check_skeleton.subject import Subject, evaluated, head_of
from perennial.engine.task import inputs_of

FEW_ROWS, ROWS = 128, 1024
MOST_FIELDS = 64
SHORTEST_SEQUENCE = 8
# A table with vectors for every field is as large as all fields together, plus codes for missing
# values and for values that the sample lacks.
ROOM, KEPT_CODES = 1.3, 4
# Sequences of one vocabulary have about the same range of codes at every position.
OTHER_RANGE = 0.5
TOKEN_SHARE = 0.01
FULL = 0.95


def find_misused_tables(subject: Subject) -> Iterator[tuple[str, str]]:
    """Yield problems with the codes of each table, each with a hint."""
    lookups = _record_lookups(subject, FEW_ROWS)
    if any(_has_room(table, codes) for _, table, codes in lookups):
        # Few rows do not show how many codes each field has.
        lookups = _record_lookups(subject, ROWS)
    for name, table, codes in lookups:
        if shared := _shared_fields(table, codes):
            yield (
                f"{name}: {shared}",
                (
                    "codes of every field begin at 0 in a table with room for all fields one after "
                    "another, so different values share a vector: add each field's offset"
                ),
            )
        if untrained := _untrained_token(table, codes):
            yield (
                f"{name}: {untrained}",
                (
                    "padding_idx is a token that texts contain: its vector stays zero, and that of "
                    "padding is learned. Set padding_idx to the code that pads sequences"
                ),
            )


def _record_lookups(subject: Subject, rows: int) -> list[tuple[str, nn.Embedding, Tensor]]:
    """Return each table with the first codes [B, T] looked up in it for so many examples."""
    model, lookups = evaluated(subject.build_model()), dict[str, Tensor]()
    tables = {name: each for name, each in model.named_modules() if isinstance(each, nn.Embedding)}

    def note(name: str, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if not given or given[0].ndim != 2 or not given[0].numel():
            return None
        lookups.setdefault(name, given[0])
        return (given[0].clamp(0, tables[name].num_embeddings - 1), *given[1:])

    if not tables:
        return []
    for name, table in tables.items():
        table.register_forward_pre_hook(lambda _, given, name=name: note(name, given))
    with torch.no_grad():
        model(**inputs_of(head_of(subject.train, min(rows, subject.task.scoring_rows))))
    return [(name or "the embedding", tables[name], codes) for name, codes in lookups.items()]


def _has_room(table: nn.Embedding, codes: Tensor) -> bool:
    """Whether the codes of few fields leave much of a table unused."""
    is_few = 2 <= codes.shape[1] <= MOST_FIELDS
    return is_few and int(codes.max()) + 1 < FULL * table.num_embeddings


def _shared_fields(table: nn.Embedding, codes: Tensor) -> str:
    """Describe fields of different ranges whose codes all begin at 0; empty if none."""
    fields = codes.shape[1]
    if not 2 <= fields <= MOST_FIELDS or len(codes) < ROWS // 4:
        return ""
    sizes, lowest = codes.amax(dim=0) + 1, int(codes.amin(dim=0).max())
    total = int(sizes.sum())
    is_table_of_all = total <= table.num_embeddings <= ROOM * total + KEPT_CODES * fields
    are_unlike = float(sizes.min()) <= OTHER_RANGE * float(sizes.max())
    if not (is_table_of_all and are_unlike and lowest <= 1):
        return ""
    used = len(np.unique(codes.numpy()))
    shown = ", ".join(map(str, sizes.tolist()))
    return (
        f"{table.num_embeddings} vectors for {fields} fields of {shown} codes, of which {used} are "
        "used"
    )


def _untrained_token(table: nn.Embedding, codes: Tensor) -> str:
    """Describe a token that is padding_idx although another code pads texts; empty if none."""
    if table.padding_idx is None or codes.shape[1] < SHORTEST_SEQUENCE:
        return ""
    padding = padding_of(codes)
    if padding is None or padding.code == table.padding_idx:
        return ""
    content = codes[~padding.covers(codes.shape[1])]
    share = float((content == table.padding_idx).double().mean())
    if share < TOKEN_SHARE:
        return ""
    return (
        f"{share:.0%} of the tokens have the code {table.padding_idx}, its padding_idx, while "
        f"sequences are padded with {padding.code}"
    )
