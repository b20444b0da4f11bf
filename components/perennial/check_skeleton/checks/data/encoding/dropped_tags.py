"""Find tags of a row's label that its encoded label lacks, as all but the first of a list."""

from collections.abc import Sequence

import numpy as np
import polars as pl
from torch import Tensor

from perennial.check_skeleton.subject import Flags

SEPARATORS = (",", ";", "|", "/", "+", " ")
MOST_TAGS = 64
FEWEST_ROWS = 20
# Of the rows with a tag and others; spellings and rare tags may be left out by design.
DROPPED = 0.1


def describe_dropped_tags(raw: pl.Series, encoded: Tensor) -> str:
    """Describe tags that reach their columns alone but not beside others; empty if there are none.

    Args:
        raw: Labels as the data has them: texts with separators, or lists of texts.
        encoded: Their codes, [N, C].
    """
    codes = encoded.numpy()
    if codes.ndim != 2 or codes.shape[1] > MOST_TAGS or not np.isin(codes, (0, 1)).all():
        return ""
    for tags in _list_divisions(raw):
        names = sorted({tag for row in tags for tag in row})
        if not 2 <= len(names) <= MOST_TAGS:
            continue
        has_tag = np.array([[name in row for name in names] for row in tags])
        is_alone = has_tag.sum(axis=1) == 1
        dropped = {
            name: share
            for name, own in zip(names, has_tag.T, strict=True)
            if (share := _measure_dropped(own, is_alone, codes == 1)) > DROPPED
        }
        if dropped:
            name = max(dropped, key=lambda each: dropped[each])
            return (
                f"{len(dropped)} tags of the label reach their columns where they stand alone, and "
                f"not beside others: {name!r} is missing in {dropped[name]:.0%} of those rows"
            )
    return ""


def _list_divisions(raw: pl.Series) -> list[list[Sequence[str]]]:
    """Return the tags of each row, by each separator that divides some rows."""
    if raw.null_count():
        return []
    if raw.dtype == pl.List(pl.String):
        return [raw.to_list()]
    if raw.dtype != pl.String:
        return []
    found = (raw.str.split(each).list.eval(pl.element().str.strip_chars()) for each in SEPARATORS)
    return [each.to_list() for each in found if (each.list.len() > 1).sum() >= FEWEST_ROWS]


def _measure_dropped(has_tag: Flags, is_alone: Flags, codes: Flags) -> float:
    """Return the share of the rows with a tag and others whose code lacks it.

    A tag's column [N] of the codes [N, C] holds in all rows where it stands alone, and in no row
    without it; 0 where there is none.
    """
    alone, beside = has_tag & is_alone, has_tag & ~is_alone
    if min(alone.sum(), beside.sum()) < FEWEST_ROWS:
        return 0.0
    is_own = codes[alone].all(axis=0) & ~codes[~has_tag].any(axis=0)
    return float(1 - codes[beside][:, is_own].mean(axis=0).max()) if is_own.any() else 0.0
