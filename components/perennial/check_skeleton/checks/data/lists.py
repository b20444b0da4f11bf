"""Lists of numbers, such as pictures and windows: what each number becomes in `encode`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.data.signals import Numbers
from perennial.check_skeleton.checks.data.teeth import sawtooth
from perennial.check_skeleton.registry import Judge
from perennial.check_skeleton.subject import Subject, head_of
from perennial.contracts.errors import BadDataError
from perennial.contracts.skeleton import CheckResult
from perennial.data.pictures import decode_picture
from perennial.engine.task import inputs_of

ROWS = 512
PICTURES = 64
FEWEST_VALUES = 8
# Share of a number's bits that must remain: a threshold at the median leaves a quarter of those of
# sixteen values, an integer division hardly any.
KEPT_BITS = 0.2
# Share of all numbers with one value: higher than a threshold makes it, as of a lost picture.
ALIKE = 0.9


@dataclass(frozen=True)
class NumberMap:
    """The mapping from the numbers of a list column to an input of as many numbers.

    Attributes:
        column: Its name.
        values: The different numbers of the column, rising.
        inputs: What each becomes.
        kept: Share of a number's bits that remain.
        common: Share of the most frequent input.
    """

    column: str
    values: Numbers
    inputs: Numbers
    kept: float
    common: float


def judge_lists(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge what becomes of numbers in lists; None if they keep their information."""
    for found in _maps(subject):
        shown = (
            f"{len(found.values)} different numbers in {found.column} become "
            f"{len(np.unique(found.inputs))}, {found.kept:.0%} of their bits"
        )
        if period := sawtooth(found.values, found.inputs):
            return judge.failed(
                f"the numbers in {found.column} wrap around after {period:.6g}",
                hint="they overflow a type of too few bits (bytes, for example): cast to float32 "
                "first",
            )
        if found.kept < KEPT_BITS:
            return (judge.failed if found.common > ALIKE else judge.warned)(
                shown,
                hint="an integer division, a cast before the scaling, or a limit makes nearly all "
                "of them equal: cast to float32 first",
            )
    return None


def _maps(subject: Subject) -> Iterator[NumberMap]:
    """Yield a map for each list column of which each number becomes one input number."""
    columns = subject.task.columns
    rows = subject.train_rows.head(ROWS)
    tensors = inputs_of(head_of(subject.train, ROWS)).values()
    encoded = [each.reshape(len(each), -1).double().numpy() for each in tensors]
    for name in columns.features:
        for raw in (_matrix(rows[name]), *_pictures(rows[name])):
            if raw is not None:
                yield from _map(name, raw, encoded)


def _map(name: str, raw: Numbers, encoded: Sequence[Numbers]) -> Iterator[NumberMap]:
    """Yield the mapping into each input that has one number for each of the column's."""
    values, places = np.unique(raw, return_inverse=True)
    if len(values) < FEWEST_VALUES:
        return
    for whole in encoded:
        each = whole[: len(raw)]
        if each.shape != raw.shape:
            continue
        first = np.zeros(len(values))
        first[places.reshape(-1)] = each.reshape(-1)
        if np.allclose(first[places].reshape(raw.shape), each, rtol=1e-4, atol=1e-6):
            kept = bits_of(each) / max(bits_of(raw), 1e-9)
            yield NumberMap(name, values, first, kept, commonest(each))


def _pictures(column: pl.Series) -> Iterator[Numbers]:
    """Yield pictures of one size as rows of numbers, channels last and channels first."""
    if column.dtype != pl.Binary or column.null_count():
        return
    try:
        found = [decode_picture(file) for file in column.head(PICTURES)]
    except BadDataError:  # files of something else
        return
    if len({each.shape for each in found}) == 1:
        pixels = np.stack(found).astype(np.float64)
        yield pixels.reshape(len(pixels), -1)
        if pixels.ndim == 4:
            yield np.moveaxis(pixels, 3, 1).reshape(len(pixels), -1)


def _matrix(column: pl.Series) -> Numbers | None:
    """Return lists of one length as rows of numbers, [N, L]; None for anything else."""
    kind = column.dtype
    if not isinstance(kind, pl.List | pl.Array) or column.null_count() or not len(column):
        return None
    inner = column.explode()
    if not inner.dtype.is_numeric() or inner.null_count() or len(inner) % len(column):
        return None
    lengths = column.list.len() if isinstance(kind, pl.List) else column.arr.len()
    if lengths.n_unique() != 1:
        return None
    return inner.cast(pl.Float64).to_numpy().reshape(len(column), -1)


def bits_of(numbers: Numbers) -> float:
    """Return the entropy of the different numbers, in bits."""
    _, counts = np.unique(np.round(numbers, 9), return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def commonest(numbers: Numbers) -> float:
    """Return the share of the most frequent number."""
    _, counts = np.unique(np.round(numbers, 9), return_counts=True)
    return float(counts.max() / counts.sum())
