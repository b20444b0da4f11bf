"""Target encodings over the whole table, and means of a key that do not count the row's own label."""

import numpy as np
import polars as pl
import pytest

from other_styles import dataset_of
from perennial.check_skeleton.checks.data.leaks.whole_table_means import describe_whole_table_mean
from perennial.tasks.tabular import TabularClassification, TabularRegression
from skeleton_tables import SETTINGS, prepared
from workshop import results_of

READERS, ROWS = 600, 3600


def loans(seed=3, rows=ROWS):
    """Readers with habits; each row is a loan."""
    random = np.random.default_rng(seed)
    reader = random.choice(READERS, rows, p=np.random.default_rng(1).dirichlet(np.full(READERS, 2)))
    habit = np.random.default_rng(2).normal(size=READERS)
    x = random.normal(size=rows)
    amount = habit[reader] + 0.5 * x + random.normal(size=rows)
    return pl.DataFrame(
        {"row": range(rows), "reader": [f"r{each}" for each in reader], "x": x,
         "y": random.normal(size=rows), "hit": (amount > 0.4).astype(float), "amount": amount}
    )  # fmt: skip


LOANS = loans()


def smoothed(of, weight, *, leave_out=False):
    total, count = pl.col(of).sum().over("reader"), pl.len().over("reader")
    if leave_out:
        total, count = total - pl.col(of), count - 1
    return (total + weight * pl.col(of).mean()) / (count + weight + 1e-9)


def subject_of(share, folder, *, of="hit", rows=LOANS):
    label = pl.col("hit").cast(pl.Int64) if of == "hit" else pl.col("amount")
    frame = rows.with_columns(share=share, label=label).drop("hit", "amount")
    data = dataset_of(frame, folder, features=("x", "y", "share"), meta=("reader",))
    task = TabularClassification if of == "hit" else TabularRegression
    settings = SETTINGS.model_copy(update={"sample_rows": ROWS})
    return prepared(task, data, settings=settings)


@pytest.mark.parametrize("share", [
    smoothed("hit", 1), smoothed("hit", 3).round(4), smoothed("hit", 20), 1 - smoothed("hit", 1),
])  # fmt: skip
def test_a_share_of_a_readers_loans_that_counts_the_row_itself_fails(share, tmp_path):
    found = results_of(subject_of(share, tmp_path), "telling_columns")["telling_columns"]
    assert found.outcome == "failed", found.measured
    assert "over the rows of a reader" in found.measured
    assert "target encoding" in found.hint


@pytest.mark.parametrize("share", [smoothed("amount", 0), smoothed("amount", 5).round(3)])
def test_a_mean_of_amounts_over_the_whole_table_is_found(share, tmp_path):
    assert describe_whole_table_mean(subject_of(share, tmp_path, of="amount"))


def of_another_year(weight, *, same_size=False):
    rows = loans(seed=9)
    own = LOANS.select("reader").with_columns(n=pl.int_range(pl.len()).over("reader"))
    before = rows.with_columns(n=pl.int_range(pl.len()).over("reader"))
    if same_size:
        before = own.join(before.select("reader", "n", "hit"), on=["reader", "n"], how="left")
    share = before.group_by("reader").agg(
        share=(pl.col("hit").sum() + weight * 0.3) / (pl.len() + weight)
    )
    return (
        LOANS.select("reader")
        .join(share, on="reader", how="left", maintain_order="left")["share"]
        .fill_null(0.3)
    )


EARLIER = pl.col("hit").shift(1).cum_sum().over("reader").fill_null(0)
SEEN = pl.int_range(pl.len()).over("reader")


@pytest.mark.parametrize("share", [
    # The year before, also as many loans of each; earlier loans alone; all others; a score.
    of_another_year(3), of_another_year(0), of_another_year(3, same_size=True),
    (EARLIER + 0.9) / (SEEN + 3), smoothed("hit", 3, leave_out=True),
    pl.col("y").mean().over("reader"), pl.len().over("reader") / 7.0,
    (smoothed("hit", 3) + pl.col("y").mean().over("reader") / 10),
])  # fmt: skip
def test_what_is_known_of_a_reader_before_passes(share, tmp_path):
    assert not describe_whole_table_mean(subject_of(share, tmp_path))
