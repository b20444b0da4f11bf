"""Near copies: validation rows that measure again what a training row measured.

Of independent rows, the nearest is not much nearer than the 20th: the share of the volume around a
row that its nearest neighbour leaves empty is that of the smallest of 20 uniform numbers. A second
measurement of the same thing is nearer by orders of magnitude. Volume grows with the distance to
the power of the dimension, which is estimated from the distances to the 20th and the 100th
neighbour (Levina and Bickel, Maximum likelihood estimation of intrinsic dimension, 2005).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import polars as pl
import torch
from scipy.stats import rankdata

from perennial.check_skeleton.checks.data.signals import read_lists
from perennial.check_skeleton.registry import Judge
from perennial.check_skeleton.subject import Codes, Flags, Floats, Subject
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import LABEL

FEWEST_COLUMNS = 3
MOST_COLUMNS = 512
# Of values that repeat often, rows are equal by chance.
DISTINCT_SHARE = 0.5
NEAR, FAR = 20, 100
FEWEST_ROWS = 4 * FAR
MOST_HELD = 512
# Natural logarithm of the volumes' ratio: 20 exp(-12), so one independent row in 8,000 exceeds it.
CLEAR_RATIO = 12.0
# Of many columns, such as a sound's, all distances are alike, and no dimension fits them.
HIGHEST_RATIO = 0.2
FEWEST_SAME = 32
FEW, MANY = 0.2, 0.3
# Share of the label that the nearest row explains, and how much more than a mere neighbour.
SAME_LABEL, CLEARER = 0.9, 0.2
LEAST_REPEATED, FEWEST_REPEATED, FEWEST_NUMBERS = 0.1, 20, 64


@dataclass(frozen=True)
class NearCopies:
    """Validation rows with a training row that is too near to be independent."""

    share: float  # of the validation rows
    ratio: float  # median of nearest to 20th nearest distance among them
    same: float  # share of the labels' variance that the nearest row's labels explain
    usual: float  # share that the labels of the 20th nearest explain


def judge_repeated_signals(
    judge: Judge, subject: Subject, overlap: float, different: int
) -> CheckResult | None:
    """Fail on pictures and signals that are in both splits with their labels; None if few are.

    `overlap` is the share of validation examples that are training examples, so many `different`
    ones: a blank picture or a silent sound may come often.
    """
    columns = (subject.train_rows[name] for name in subject.task.columns.features)
    is_rare = overlap < LEAST_REPEATED or different < FEWEST_REPEATED
    if is_rare or not any(map(_is_signal, columns)):
        return None
    return judge.failed(
        f"{overlap:.1%} of validation examples, {different} different ones, are training examples, "
        "number by number and with the same label",
        hint="pictures and signals do not repeat by chance: the same file came in under other "
        "numbers. Deduplicate by their bytes before the split, or split by a group that keeps "
        "copies together",
    )


def _is_signal(column: pl.Series) -> bool:
    """Whether a column holds pictures, or lists of many numbers."""
    if column.dtype == pl.Binary:
        return True
    lists = read_lists(column) if column.dtype.is_nested() else None
    return lists is not None and lists.shape[1] >= FEWEST_NUMBERS


def judge_near_copies(judge: Judge, subject: Subject, *, is_random: bool) -> CheckResult | None:
    """Judge repeated measurements of the same things in a random split; None if there are none.

    A split by group keeps those of one thing together.
    """
    is_grouped = subject.data is not None and subject.data.group is not None
    found = find_near_copies(subject) if is_random and not is_grouped else None
    if found is None or found.share < FEW:
        return None
    is_explained = found.same >= max(SAME_LABEL, found.usual + CLEARER)
    is_known = is_explained and found.share >= MANY
    labels = f"; its label explains {found.same:.0%} of theirs, that of the 20th {found.usual:.0%}"
    return (judge.failed if is_known else judge.warned)(
        f"{found.share:.0%} of the validation rows have a training row that is too near for "
        f"independent rows: at {found.ratio:.1%} of the distance to the 20th nearest"
        f"{labels if is_explained else ''}",
        hint="rows that measure the same thing again are in both splits, so recognising it is "
        'enough: name the column that identifies it in data.group and set split.method = "group"',
        near_copies=found.share,
        same=found.same,
    )


def find_near_copies(subject: Subject) -> NearCopies | None:
    """Find validation rows that are near copies; None where rows have too few amounts."""
    train, held = _tabulate(subject)
    if len(train) < FEWEST_ROWS:
        return None
    both = np.concatenate([train, held])
    # One more than may be used is enough to know; a sound has 16,000.
    distinct = list(islice(_distinct_columns(both), MOST_COLUMNS + 1))
    if not FEWEST_COLUMNS <= len(distinct) <= MOST_COLUMNS:
        return None
    both = both[:, distinct]
    # By rank, so that no column and no tail decides alone.
    ranks = torch.from_numpy(rankdata(both, axis=0) / len(both))
    nearest = torch.cdist(ranks[len(train) :], ranks[: len(train)]).topk(FAR, largest=False)
    first, near, far = (nearest.values[:, number - 1] for number in (1, NEAR, FAR))
    # Copies without any difference are found by their equality.
    is_known = (first > 0) & (near > 0)
    spread = float((far / near).log()[is_known].median()) if is_known.any() else 0.0
    if spread <= 0:
        return None
    dimension = math.log(FAR / NEAR) / spread
    is_copy = dimension * (near / first).log() > CLEAR_RATIO
    is_copy &= is_known & (first < HIGHEST_RATIO * near)
    if not is_copy.any():
        return NearCopies(0.0, 1.0, 0.0, 0.0)
    same, usual = (
        _explain_labels(subject, nearest.indices[is_copy, number - 1].numpy(), is_copy.numpy())
        for number in (1, NEAR)
    )
    ratio = float((first / near)[is_copy].median())
    return NearCopies(float(is_copy.double().mean()), ratio, same, usual)


def _distinct_columns(values: Floats) -> Iterator[int]:
    """Yield the numbers of the columns [N, D] whose values rarely repeat."""
    for number, column in enumerate(values.T):
        if np.unique(column).size >= DISTINCT_SHARE * len(values):
            yield number


def _tabulate(subject: Subject) -> list[Floats]:
    """Return the features that are amounts, or lists of one length, as columns of both splits.

    A column in which a number is missing, in either of them, has no distances.
    """
    splits = subject.train_rows, subject.validation_rows.head(MOST_HELD)
    columns = [[np.empty((rows.height, 0))] for rows in splits]
    for name in subject.task.columns.features:
        found = [_read_amounts(rows[name]) for rows in splits]
        known = [each for each in found if each is not None and np.isfinite(each).all()]
        if len(known) == len(splits) and known[0].shape[1] == known[1].shape[1]:
            for held, part in zip(columns, known, strict=True):
                held.append(part)
    return [np.concatenate(parts, axis=1) for parts in columns]


def _read_amounts(column: pl.Series) -> Floats | None:
    if column.dtype.is_float() and not column.null_count():
        return column.cast(pl.Float64).to_numpy()[:, None]
    return read_lists(column)


def _explain_labels(subject: Subject, others: Codes, is_copy: Flags) -> float:
    """Return the share of variance that labels of training rows explain of validation labels."""
    train = subject.train[LABEL].double().numpy()
    held = subject.validation[LABEL].double().numpy()[: len(is_copy)][is_copy]
    if train.ndim > 1 or subject.task.kind == "statistic" or len(held) < FEWEST_SAME:
        return 0.0
    other = train[others]
    if subject.task.kind == "multiclass":  # codes have no order
        chance = float(np.square(np.unique(held, return_counts=True)[1] / len(held)).sum())
        agreement = float((held == other).mean())
        return max(0.0, (agreement - chance) / max(1 - chance, 1e-9))
    if min(held.std(), other.std()) == 0:
        return 0.0
    return float(np.corrcoef(held, other)[0, 1]) ** 2
