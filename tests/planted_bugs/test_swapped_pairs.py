"""Pairs that were doubled by exchanging their sides before the split, and those that meet again."""

import numpy as np
import polars as pl
import pytest

from mixed_numbers import TwoClasses, subject_of
from perennial.check_skeleton.checks.data.leaks.leakage import check_split_overlap

RNG = np.random.default_rng
ROWS, ARTICLES, CLUBS = 2000, 400, 18


def articles(rows=ROWS):
    """Pairs of articles that are bought together, or are not; a price gap that decides it a bit."""
    first, second = RNG(1).integers(0, ARTICLES, (2, rows))
    label = (RNG(2).normal(size=rows) + np.abs(first - second) / 200 > 1).astype(int)
    names = [[f"article {each}" for each in side] for side in (first, second)]
    return pl.DataFrame({"row": range(rows), "one": names[0], "other": names[1], "label": label})


def both_ways(frame):
    swapped = frame.rename({"one": "other", "other": "one"}).select(frame.columns)
    return pl.concat([frame, swapped]).with_columns(row=pl.int_range(pl.len()))


def numbered(frame):
    """Articles by number, beside a number that both orders share."""
    number = pl.col("one", "other").str.extract(r"(\d+)").cast(pl.Int64)
    return frame.with_columns(number, gap=RNG(3).normal(size=len(frame)))


def matches():
    """Clubs that play at home and away in many seasons: who wins is a draw of the better one."""
    home, away = RNG(4).integers(0, CLUBS, (2, ROWS))
    wins = (home - away + RNG(5).normal(0, 6, ROWS) > 0).astype(int)
    names = [[f"club {each}" for each in side] for side in (home, away)]
    return pl.DataFrame({"row": range(ROWS), "one": names[0], "other": names[1], "label": wins})


def ratings():
    """Users and items by number: user 3 with item 5, and user 5 with item 3, are no pair."""
    pairs = RNG(6).permutation(60 * 50)[:1500]
    label = (RNG(7).random(1500) < 0.5).astype(int)
    columns = {"one": pairs // 50, "other": pairs % 50, "label": label}
    return pl.DataFrame({"row": range(1500), **columns})


BUGS = {
    "texts": lambda: both_ways(articles(1000)),
    "numbers": lambda: both_ways(numbered(articles(1000))),
}
HEALTHY = {
    "pairs in one order": articles,
    "clubs that meet again": matches,
    "numbers of two kinds": ratings,
    "both orders in one split": lambda: both_ways(articles(1000)).with_columns(
        pair=pl.concat_str(
            pl.min_horizontal("one", "other"), pl.max_horizontal("one", "other"), separator=" & "
        )
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_pairs_in_both_splits_fail(bug, tmp_path):
    result = check_split_overlap(subject_of(TwoClasses, BUGS[bug](), tmp_path))
    assert (result.outcome, "exchanged" in result.measured) == ("failed", True), result.measured


@pytest.mark.parametrize("case", HEALTHY)
def test_other_pairs_are_not_failed(case, tmp_path):
    frame = HEALTHY[case]()
    data = {"group": "pair"} if "pair" in frame.columns else {}
    result = check_split_overlap(subject_of(TwoClasses, frame, tmp_path, **data))
    assert "exchanged" not in result.measured, result.measured
    assert result.outcome != "failed", result.measured
