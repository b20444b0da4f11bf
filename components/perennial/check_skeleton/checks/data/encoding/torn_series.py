"""Find series whose axes of time and channels were exchanged by a reshape, scales aside."""

import numpy as np
from scipy.stats import rankdata
from torch import nn

from perennial.check_skeleton.checks.data.signals import read_lists
from perennial.check_skeleton.subject import Floats, Subject

SHORTEST_SERIES, FEWEST_KNOWN = 8, 5
# Of ranks within a row: a series by any rising or falling function, by its own mean or not, has 1.
SAME = 0.999
OTHER = 0.9
NEARLY_ALL = 0.9


def describe_torn_series(subject: Subject, encoded: Floats) -> str:
    """Describe a list that runs along an axis of inputs [N, H, W] only if they are [W, H].

    Empty if there is none. Beside the list stand numbers that are computed, as flags of gaps.
    """
    high, wide = encoded.shape[1:]
    if high == wide:
        return ""
    turned = encoded.reshape(-1, wide, high)
    lengths = [side for side in (high, wide) if side >= SHORTEST_SERIES]
    for column in subject.train_rows.head(len(encoded)):
        series = read_lists(column, with_gaps=True)
        if series is None or series.shape[1] not in lengths:
            continue
        own, other = encoded, turned.swapaxes(1, 2)
        if series.shape[1] == high:
            own, other = encoded.swapaxes(1, 2), turned
        in_place, elsewhere = (_correlate_ranks(series, each) for each in (own, other))
        is_torn = (elsewhere > SAME).mean() > NEARLY_ALL and np.median(in_place) < OTHER
        if is_torn and not is_patched(subject, encoded):
            return (
                f"{high} x {wide}, but {column.name} runs along an axis only if its numbers are "
                f"read as {wide} x {high}"
            )
    return ""


def is_patched(subject: Subject, encoded: Floats) -> bool:
    """Whether a linear layer reads the last axis of inputs [N, H, W], of parts on purpose."""
    rows, wide = encoded.shape[1:]
    modules = subject.build_model().modules()
    return any(isinstance(each, nn.Linear) and each.in_features == wide > rows for each in modules)


def _correlate_ranks(series: Floats, candidates: Floats) -> Floats:
    """Return for each row [N] the largest correlation with one of its candidates [N, K, L].

    Missing numbers of the series are left out, as are rows of few different ones.
    """
    found = list[float]()
    for own, others in zip(series, candidates, strict=True):
        known = np.isfinite(own)
        if len(np.unique(own[known])) < FEWEST_KNOWN:
            continue
        ranks = rankdata(np.concatenate([own[None], others])[:, known], axis=1)
        with np.errstate(invalid="ignore"):  # a constant channel correlates with nothing
            found.append(float(np.abs(np.nan_to_num(np.corrcoef(ranks)[0, 1:])).max()))
    return np.array(found) if found else np.zeros(1)
