"""Facts are the same however the rows are cut, and as exact as they claim."""

import itertools
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from perennial.clients.object_store import open_store
from perennial.contracts.validation import ValidationReport
from perennial.validate_data import (
    distributions,
    duplicates,
    facts,
    labels,
    partition_facts,
    samples,
    sketches,
)
from perennial.validate_data.config import ExpectationsSection
from perennial.validate_data.duplicates import count_keys, merge_keys, repeats_of
from perennial.validate_data.facts import gather_facts
from perennial.validate_data.leakage import leakage_aucs

NOW = datetime(2025, 1, 1, tzinfo=UTC)


@pytest.fixture
def gathered(tmp_path):
    """Measures a snapshot from the start, with a store of its own for every call."""
    stores = itertools.count()

    def gather(snapshot, **options):
        store = open_store(str(tmp_path / f"store{next(stores)}"))
        return gather_facts(snapshot, ExpectationsSection(**options), NOW, store)

    return gather


@pytest.fixture
def few_kept(monkeypatch):
    """Every sample and every distribution keeps a part of what three months hold."""
    monkeypatch.setattr(distributions, "MAX_BINS", 64)
    monkeypatch.setattr(distributions, "MAX_TEXT_COUNTS", 100)
    monkeypatch.setattr(duplicates, "MAX_ENTRIES", 500)
    monkeypatch.setattr(duplicates, "MIN_KEYS", 50)
    monkeypatch.setattr(labels, "MAX_VALUES", 50)
    monkeypatch.setattr(samples, "SAMPLE_ROWS", 700)
    monkeypatch.setattr(samples, "STRATUM_ROWS", 100)


class TestStreaming:
    def test_partitions_and_batches_do_not_matter(
        self, gathered, snapshot_of, healthy, monkeypatch
    ):
        whole = gathered(snapshot_of(healthy))
        parts = [healthy.slice(start, 100) for start in range(0, healthy.height, 100)]
        for batch_rows in (100_000, 37):
            monkeypatch.setattr(partition_facts, "BATCH_ROWS", batch_rows)
            cut = gathered(snapshot_of(*parts))
            assert cut.values == whole.values
            assert cut.blocks == whole.blocks

    def test_the_order_of_rows_does_not_matter_even_for_samples(
        self, gathered, snapshot_of, healthy, few_kept
    ):
        whole = gathered(snapshot_of(healthy))
        mixed = gathered(snapshot_of(healthy.sample(fraction=1.0, shuffle=True, seed=3)))
        assert mixed.values == whole.values
        assert mixed.blocks == whole.blocks

    def test_categories_are_compared_by_text_not_by_code(self, gathered, snapshot_of, healthy):
        texts = [healthy.head(1_500), healthy.tail(1_500)]
        coded = [part.with_columns(pl.col("city", "id").cast(pl.Categorical)) for part in texts]
        assert gathered(snapshot_of(*coded)).values == pytest.approx(
            gathered(snapshot_of(*texts)).values
        )


class TestBlocks:
    def test_without_a_time_column_every_file_is_a_block(
        self, gathered, snapshot_of, healthy, monkeypatch
    ):
        parts = [healthy.slice(start, 1_000) for start in (0, 1_000, 2_000)]
        timeless = snapshot_of(*parts, time=None, available_at={}, meta=("at", "weather_at"))
        blocks = gathered(timeless).blocks
        assert [block.title for block in blocks] == [f"file part-00{i}.parquet" for i in range(3)]
        assert [block.files[0].sha256 for block in blocks] == [f.sha256 for f in timeless.files]
        for block, rows in zip(blocks, parts, strict=True):
            assert block.rows == 1_000
            assert block.label_mean == pytest.approx(rows["label"].mean())
            assert block.numeric["weather"].nulls == rows["weather"].null_count()
            assert block.categorical["city"].counts == dict(rows["city"].value_counts().iter_rows())
        monkeypatch.setattr(facts, "MAX_FILES", 2)
        assert gathered(timeless).blocks == blocks[1:]
        renamed = [timeless.files[0].uri.replace("part-000", name) for name in ("9", "10", "1")]
        for file, name in zip(timeless.files, renamed, strict=True):
            Path(file.uri).rename(name)
        numbered = timeless.model_copy(
            update={
                "files": tuple(
                    file.model_copy(update={"uri": name})
                    for file, name in zip(timeless.files, renamed, strict=True)
                )
            }
        )
        assert [b.title for b in gathered(numbered).blocks] == ["file 9.parquet", "file 10.parquet"]

    def test_counts_are_exact_and_blocks_lie_on_the_grid(self, gathered, snapshot_of, healthy):
        blocks = gathered(snapshot_of(healthy)).blocks
        assert sum(block.rows for block in blocks) == healthy.height
        assert all((block.start.date() - date(1970, 1, 1)).days % 7 == 0 for block in blocks)
        third = blocks[2]
        rows = healthy.filter(pl.col("at").is_between(third.start, third.end, closed="left"))
        assert third.rows == rows.height
        assert third.label_mean == pytest.approx(rows["label"].mean())
        assert third.numeric["weather"].nulls == rows["weather"].null_count()
        assert third.categorical["city"].counts == dict(rows["city"].value_counts().iter_rows())
        levels = np.linspace(0, 1, 129)
        expected = np.quantile(rows["amount"], levels)
        assert third.numeric["amount"].quantiles == pytest.approx(expected, rel=1e-6)

    def test_a_sample_keeps_the_scale_of_the_block(self, gathered, snapshot_of, healthy, request):
        exact = gathered(snapshot_of(healthy)).blocks
        request.getfixturevalue("few_kept")
        for sampled, whole in zip(gathered(snapshot_of(healthy)).blocks, exact, strict=True):
            total = sum(sampled.categorical["city"].counts.values())
            assert total == pytest.approx(whole.rows, abs=2)
            assert sampled.rows == whole.rows
            assert sampled.numeric["weather"].nulls == whole.numeric["weather"].nulls
            assert sampled.numeric["amount"].quantiles[64] == pytest.approx(
                whole.numeric["amount"].quantiles[64], abs=0.5
            )  # half the width of a bin

    def test_rare_categories_share_one_name(self, gathered, snapshot_of, healthy):
        many = healthy.with_columns(
            city=pl.when(pl.col("visits") > 9).then("city").otherwise("user")
        )
        blocks = gathered(snapshot_of(many)).blocks
        names = {name for block in blocks for name in block.categorical["city"].counts}
        assert len(names) == sketches.MAX_CATEGORIES + 1
        assert sketches.OTHER in names
        assert sum(sum(block.categorical["city"].counts.values()) for block in blocks) == 3_000

    @pytest.mark.parametrize(
        ("label", "mean"),
        [
            (pl.col("label").cast(pl.Boolean), "label"),
            (pl.when(pl.col("label") == 1).then(pl.lit("yes")).otherwise(pl.lit("no")), "label"),
            (pl.col("amount"), "amount"),
            (pl.col("city"), None),
            (pl.lit(None, pl.Int64), None),
            # One number as floats, so that their shares are unknown.
            (pl.col("label").cast(pl.Int64) + 2**60, None),
        ],
        ids=["boolean", "two texts", "number", "three texts", "missing", "two huge numbers"],
    )
    def test_label_mean(self, gathered, snapshot_of, healthy, label, mean):
        for block in gathered(snapshot_of(healthy.with_columns(label=label))).blocks:
            rows = healthy.filter(pl.col("at").is_between(block.start, block.end, closed="left"))
            assert block.label_mean == (pytest.approx(rows[mean].mean()) if mean else None)

    def test_an_all_missing_feature_has_no_quantiles(self, gathered, snapshot_of, healthy):
        blocks = gathered(snapshot_of(healthy.with_columns(amount=float("nan")))).blocks
        assert blocks[0].numeric["amount"].quantiles == ()
        assert blocks[0].numeric["amount"].nulls == blocks[0].rows

    def test_a_value_that_is_called_other_is_not_taken_for_all_others(
        self, gathered, snapshot_of, healthy
    ):
        city = pl.col("city").replace({"Kiel": sketches.OTHER, "Bonn": f"{sketches.OTHER}'"})
        counts = [
            block.categorical["city"].counts
            for rows in (healthy, healthy.with_columns(city))
            for block in gathered(snapshot_of(rows)).blocks
        ]
        plain, called_other = counts[: len(counts) // 2], counts[len(counts) // 2 :]
        assert called_other == [
            {"(other)'": each["Kiel"], "(other)''": each["Bonn"], "Ulm": each["Ulm"]}
            for each in plain
        ]

    def test_unlabelled_rows_are_in_the_sketches(self, gathered, snapshot_of, healthy):
        late = healthy.with_columns(
            label=pl.when(pl.col("at") < datetime(2024, 3, 1)).then("label")
        )
        blocks = gathered(snapshot_of(late)).blocks
        assert blocks[-1].label_mean is None
        assert blocks[-1].rows > 0


def keys(values, split="train", labels=None) -> pl.DataFrame:
    split = pl.Series([split] * len(values), dtype=duplicates.SPLITS)
    frame = pl.DataFrame({"key": pl.Series(values).hash(), "split": split})
    frame = frame if labels is None else frame.with_columns(label=pl.Series(labels).hash())
    return count_keys(frame)


def repeats(*tables: pl.DataFrame) -> duplicates.Repeats:
    return repeats_of(merge_keys(pl.concat(tables)))


class TestKeys:
    def test_counts_repeats_within_and_across_splits(self):
        found = repeats(keys([1, 1, 2, 3]), keys([3, 4], "test"))
        assert found.duplicate_share == pytest.approx(2 / 6)
        assert found.overlap_share == pytest.approx(1 / 2)
        assert found.chance_share == pytest.approx(2 / 4)

    def test_tells_contradictions_from_copies(self):
        found = repeats(keys([1, 1, 2, 2, 3], labels=["a", "b", "a", "a", "c"]))
        assert found.conflict_share == pytest.approx(2 / 5)

    def test_is_empty_without_rows(self):
        assert repeats(keys([])).duplicate_share == 0

    @pytest.mark.parametrize("share", [0.0, 0.03, 0.5])
    def test_shares_stay_right_when_keys_are_dropped(self, share, monkeypatch):
        monkeypatch.setattr(duplicates, "MAX_ENTRIES", 20_000)
        rows, parts = 200_000, []
        copies = int(rows * share)
        for start in range(0, rows, 50_000):
            parts.append(keys(range(start, start + 50_000)))
        parts.append(keys(range(copies), "test"))
        parts.append(keys(range(rows, rows + rows - copies), "test"))
        found = repeats(*parts)
        assert found.overlap_share == pytest.approx(share, abs=0.025)  # five standard errors
        assert merge_keys(pl.concat(parts)).height <= 20_000


class TestLeakage:
    RANDOM = np.random.default_rng(11)
    X = RANDOM.normal(size=4_000)

    def auc(self, feature, label, kind):
        sample = pl.DataFrame({"x": feature, "label": label})
        return leakage_aucs(sample, {"x": sample["x"].dtype}, "label", kind).get("x")

    # A weak feature loses a little to the noise of its bins; verdicts are made far above it.
    @pytest.mark.parametrize(
        ("noise", "error"), [(0.0, 0.01), (0.5, 0.01), (1.0, 0.02), (3.0, 0.05)]
    )
    def test_agrees_with_the_exact_area_of_a_monotone_feature(self, noise, error):
        from sklearn.metrics import roc_auc_score

        truth = (self.X + noise * self.RANDOM.normal(size=4_000)) > 0
        exact = roc_auc_score(truth[1::2], self.X[1::2])
        assert self.auc(self.X, truth, "classes") == pytest.approx(exact, abs=error)

    @pytest.mark.parametrize("noise", [0.05, 0.5, 2.0])
    def test_a_number_is_scored_by_the_pairs_it_orders(self, noise):
        from scipy.stats import kendalltau

        target = self.X + noise * self.RANDOM.normal(size=4_000)
        exact = (1 + kendalltau(self.X[1::2], target[1::2]).statistic) / 2
        assert self.auc(self.X, target, "number") == pytest.approx(exact, abs=0.02)

    @pytest.mark.parametrize("kind", ["classes", "number"])
    @pytest.mark.parametrize("feature", ["noise", "ids", "constant", "empty"])
    def test_what_says_nothing_scores_a_half(self, kind, feature):
        values = {
            "noise": self.RANDOM.normal(size=4_000),
            "ids": pl.Series(range(4_000)).cast(pl.String),
            "constant": [1.0] * 4_000,
            "empty": pl.Series([None] * 4_000, dtype=pl.Float64),
        }[feature]
        label = self.X > 0 if kind == "classes" else self.X
        assert self.auc(values, label, kind) == pytest.approx(0.5, abs=0.06)

    @pytest.mark.parametrize("half", [0, 1])
    def test_a_number_that_differs_in_one_half_of_the_rows_only_is_not_scored(self, half):
        rare = np.zeros(4_000)
        rare[half:600:200] = 0.5, 1.5, 2.5
        assert self.auc(self.X, rare, "number") is None
        both = rare + np.roll(rare, 1)
        assert self.auc(self.X, both, "number") == pytest.approx(0.5, abs=0.4)
        assert self.auc(both, both, "number") > 0.8

    def test_several_classes_are_averaged_by_frequency(self):
        label = np.digitize(self.X, [-0.5, 0.5])
        assert self.auc(self.X, label, "classes") > 0.98
        assert self.auc(self.RANDOM.normal(size=4_000), label, "classes") == pytest.approx(
            0.5, abs=0.03
        )

    @pytest.mark.parametrize("rows", [0, 1, 199])
    def test_few_rows_are_skipped(self, rows):
        assert self.auc(self.X[:rows], self.X[:rows] > 0, "classes") is None


INTERNAL = [
    *("count", "proportion", "len", "rows", "value", "column", "present", "block", "day", "key"),
    *(
        "level",
        "cut",
        "split",
        "code",
        "shift",
        "name",
        "label_",
        "low",
        "high",
        "index",
        "literal",
    ),
]


@pytest.mark.parametrize("label", ["count", "value", "rows"])
def test_columns_may_be_named_like_what_is_counted(label, healthy, snapshot_of, validate):
    """As sales are by `count` and `value`, and polars' own columns by `count` and `len`."""
    random = np.random.default_rng(1)
    columns = {
        name: random.choice(["a", "b"], 1000) if place % 2 else random.normal(size=1000)
        for place, name in enumerate(INTERNAL)
        if name != label
    }
    rows = healthy.head(1000).select("id", "at", "user", pl.col("label").alias(label))
    validate(snapshot_of(rows.with_columns(**columns), label=label, available_at={}))
    facts = ValidationReport.read(validate.out / "validation").facts
    assert {f"leakage_auc:{name}" for name in columns} <= facts.keys()
