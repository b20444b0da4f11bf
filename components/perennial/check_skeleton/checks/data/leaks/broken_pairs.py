"""Find columns that belong together in positive rows, but not in negatives that were made up."""

from itertools import permutations

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.data.signals import is_plain
from perennial.check_skeleton.registry import Judge
from perennial.check_skeleton.subject import Subject
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import LABEL

# An article has one brand: of so many articles, each in several rows, and of brands.
FEWEST_OWNERS, FEWEST_ROWS_EACH, FEWEST_OWNED = 10, 5, 3
FEWEST_NEGATIVES = 100
BROKEN_SHARE = 0.2
MOST_COLUMNS = 16


def judge_broken_pairs(judge: Judge, subject: Subject) -> CheckResult | None:
    """Fail if one column decides another in every positive row, and is often beside others else.

    A negative that was drawn by exchanging an article's number alone keeps the brand and price of
    the one that was bought: no request looks like that, and a model need not know the buyer.
    """
    labels = subject.train[LABEL]
    has_classes = subject.task.kind in ("binary", "multiclass") and labels.ndim == 1
    if not has_classes or set(labels.tolist()) != {0, 1}:
        return None
    is_positive = pl.Series(labels.numpy() > 0)
    positive = subject.train_rows.filter(is_positive)
    negative = subject.train_rows.filter(~is_positive)
    if negative.height < FEWEST_NEGATIVES:
        return None
    names = [
        name
        for name in subject.task.columns.features
        if is_plain(positive[name]) and positive[name].dtype in (pl.String, pl.Int64, pl.Int32)
    ]
    for owner, owned in permutations(names[:MOST_COLUMNS], 2):
        known = positive.select(owner, owned).drop_nulls()
        pairs = known.unique()
        owners = pairs[owner].n_unique()
        if (
            pairs.height != owners
            or owners < FEWEST_OWNERS
            or known.height < FEWEST_ROWS_EACH * owners
            or pairs[owned].n_unique() < FEWEST_OWNED
        ):
            continue
        both = negative.select(owner, owned).join(pairs, on=owner, suffix=" in positives")
        differs = (both[owned] != both[f"{owned} in positives"]).to_numpy()
        if len(both) >= FEWEST_NEGATIVES and np.mean(differs) > BROKEN_SHARE:
            return judge.failed(
                f"each of {owners} values of {owner} has one {owned} in positive rows, and another "
                f"one in {np.mean(differs):.0%} of the negative rows",
                hint=f"negatives were made by exchanging {owner} alone: take all columns of the "
                "drawn row, since requests come with columns that belong together. Correct if the "
                "label is whether they do",
            )
    return None
