"""Leakage: how well each feature alone ranks the label; one that does it too well is a leak.

Every feature is encoded by the mean label of its values (text) or of its quantile bins (numbers,
missing values in a bin of their own), fitted on one half of the rows and scored on the other. So a
leak is found whether the label rises with the feature, falls with it, or hides in the missing
values, and a column of identifiers, which only fits the first half, is not mistaken for one.
"""

import math
from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import logit
from scipy.stats import kendalltau, mannwhitneyu, rankdata

from perennial.validate_data.columns import finite, is_text
from perennial.validate_data.labels import OPAQUE, LabelKind

SAMPLE_ROWS = 100_000
MIN_ROWS = 200
_NUM_BINS = 64
_MIN_BIN_ROWS = 20
_MAX_SCORED_CLASSES = 20
# Weight of the overall mean in each value's mean, in rows: rare values must not look certain.
_PRIOR_ROWS = 10.0
_MISSING = -1

Codes = NDArray[np.int64]
Targets = NDArray[np.float64]


def leakage_aucs(
    sample: pl.DataFrame, features: Mapping[str, pl.DataType], label: str, kind: LabelKind
) -> dict[str, float]:
    """Area under the ROC curve of each feature on its own; empty when it cannot be computed.

    For several classes, the mean over one class against the rest, weighted by frequency; for a
    number, the share of pairs of rows that the feature orders as the label does. The sample has
    labelled rows in random order; the even ones fit, the odd ones score.
    """
    rows = sample.head(SAMPLE_ROWS)
    if kind in OPAQUE or rows.height < MIN_ROWS or rows[label].n_unique() < 2:
        return {}
    targets = _targets(rows[label], kind)
    if not targets:
        return {}
    return {
        name: _auc([_codes(rows, name, dtype)], targets, kind) for name, dtype in features.items()
    }


def joint_auc(
    sample: pl.DataFrame, features: Mapping[str, pl.DataType], label: str, kind: LabelKind
) -> float:
    """Area under the ROC curve of all these features, by the sum of what each tells; 0.5 for none.

    The other arguments are those of `leakage_aucs`, which must have found AUCs in this sample.
    """
    rows = sample.head(SAMPLE_ROWS)
    codes = [_codes(rows, name, dtype) for name, dtype in features.items()]
    return _auc(codes, _targets(rows[label], kind), kind) if codes else 0.5


def auc_error(label: pl.Series, kind: LabelKind, auc: float = 0.95) -> float:
    """Return the standard error of an area that half of these labels are scored for.

    sqrt(a (1 - a) / m) for m rows of the rarer side, after Birnbaum and Klose (1957); of several
    classes, of the most frequent one against the rest, and of numbers, of two equal halves.
    """
    scored = max(min(len(label), SAMPLE_ROWS) // 2, 1)
    share = 0.5
    if kind == "classes":
        most = label.alias("value").value_counts(sort=True)["count"][0] / len(label)
        share = min(most, 1 - most)
    return math.sqrt(auc * (1 - auc) / max(share * scored, 1))


def persistence_auc(sample: pl.DataFrame, label: str, kind: LabelKind) -> float:
    """Area under the ROC curve of the label's own last value before, of the row's group.

    What a forecast may know: in a series that changes slowly, its past ranks the label as a leak
    does. The sample has times `__time__` and groups `__group__`; of a part of the rows, the last
    value lies further back, so that this is too low rather than too high.
    """
    rows = sample.head(SAMPLE_ROWS).with_row_index("__row")
    moments = rows.drop_nulls("__time__").sort("__time__")
    before = moments.select("__group__", "__time__", pl.col(label).alias("__before__"))
    known = moments.select("__row", "__group__", "__time__").join_asof(
        before, on="__time__", by="__group__", allow_exact_matches=False, check_sortedness=False
    )
    joined = rows.join(known.select("__row", "__before__"), on="__row", how="left")
    codes = _codes(joined.sort("__row"), "__before__", joined.schema["__before__"])
    return _auc([codes], _targets(rows[label], kind), kind)


def _targets(label: pl.Series, kind: LabelKind) -> list[tuple[float, Targets]]:
    """Return the targets to rank, each with its weight."""
    if kind == "number":
        found = [(1.0, rankdata(label.cast(pl.Float64).to_numpy()))]
    else:
        counts = label.alias("value").value_counts(sort=True).head(_MAX_SCORED_CLASSES)
        found = [
            (float(count), (label == value).cast(pl.Float64).to_numpy())
            for value, count in counts.iter_rows()
        ]
    # A half in which nothing differs has no pair to rank.
    usable = [(weight, y) for weight, y in found if _has_both(y[::2]) and _has_both(y[1::2])]
    # The second of two classes gives the same as the first.
    return usable[:1] if label.n_unique() == 2 else usable


def _codes(rows: pl.DataFrame, name: str, dtype: pl.DataType) -> Codes:
    """An integer per value or bin."""
    if not dtype.is_numeric():
        values = rows[name]
        if dtype.is_temporal():
            values = values.to_physical()
        elif not is_text(dtype):  # lists, structures: only equality can be tested
            # The hash of a missing value is a number as well.
            values = values.hash().zip_with(
                values.is_not_null(), pl.Series([None], dtype=pl.UInt64)
            )
        else:
            values = values.cast(pl.String)
        return values.rank("dense").cast(pl.Int64).fill_null(_MISSING).to_numpy()
    series = rows.select(finite(name, dtype).cast(pl.Float64)).to_series()
    numbers = series.fill_null(float("nan")).to_numpy()
    # Bins from the rows that fit: those that score must not have shaped the encoding.
    fitted = numbers[::2][~np.isnan(numbers[::2])]
    if not len(fitted):
        return np.full(len(numbers), _MISSING)
    bins = min(_NUM_BINS, max(len(fitted) // _MIN_BIN_ROWS, 2))
    edges = np.unique(np.quantile(fitted, np.linspace(0, 1, bins + 1)[1:-1]))
    return np.where(np.isnan(numbers), _MISSING, np.searchsorted(edges, numbers, side="left"))


def _auc(columns: list[Codes], targets: list[tuple[float, Targets]], kind: LabelKind) -> float:
    """Return the concordance of the sum of the columns' encoded values with the targets."""
    scores = []
    for _, target in targets:
        means = [_encoded(codes[::2], target[::2], codes[1::2]) for codes in columns]
        score = np.sum(means if kind == "number" else logit(means), axis=0)
        truth = target[1::2]
        scores.append(_concordance(score, truth) if kind == "number" else _roc_auc(score, truth))
    return float(np.average(scores, weights=[weight for weight, _ in targets]))


def _encoded(fit_codes: Codes, target: Targets, codes: Codes) -> Targets:
    """Each code's mean target in the rows that fit; unknown codes get the overall mean."""
    known, position = np.unique(fit_codes, return_inverse=True)
    sums, rows = np.bincount(position, weights=target), np.bincount(position)
    overall = target.mean()
    means = (sums + _PRIOR_ROWS * overall) / (rows + _PRIOR_ROWS)
    index = np.searchsorted(known, codes).clip(max=len(known) - 1)
    encoded: Targets = np.where(known[index] == codes, means[index], overall)
    return encoded


def _roc_auc(score: Targets, truth: Targets) -> float:
    positives = truth > 0.5
    higher, lower = score[positives], score[~positives]
    pairs = len(higher) * len(lower)
    # The number of pairs in the right order; the method matters for the p-value only.
    return float(mannwhitneyu(higher, lower, method="asymptotic").statistic) / pairs


def _concordance(score: Targets, truth: Targets) -> float:
    """Share of the pairs with different truth that the score orders alike; a tie counts half."""
    if not _has_both(score):
        return 0.5
    tau = float(kendalltau(score, truth).statistic)
    # Kendall's tau-b divides by pairs untied in either; here only pairs tied in truth are left out.
    return 0.5 + 0.5 * tau * float(np.sqrt(_untied_pairs(score) / _untied_pairs(truth)))


def _untied_pairs(values: Targets) -> float:
    _, counts = np.unique(values, return_counts=True)
    n = float(len(values))
    return n * (n - 1) / 2 - float((counts * (counts - 1.0) / 2).sum())


def _has_both(values: Targets) -> bool:
    return bool(values.min() < values.max())
