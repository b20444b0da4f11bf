"""Rows that weigh differently: what still compares between two models, and how means are taken."""

from dataclasses import replace
from datetime import date

import numpy as np
import polars as pl
import pytest

from perennial.clients.object_store import sha256_of_file
from perennial.contracts.data import DataSection, Split, SplitSection
from perennial.contracts.snapshot import DataFile, Snapshot
from perennial.data.dataset import Dataset
from perennial.engine.evaluation.resampling import blocks_of
from perennial.engine.evaluation.scoring import Scored
from perennial.gate.champion import Champion
from perennial.gate.comparison import Contender, Match, MeasuredBaselines, compare
from perennial.gate.config import GateSection
from perennial.gate.figures import performance_by_block, performance_by_file
from perennial.gate.judgement import JudgedRows, reach_verdict
from perennial.tasks.language_modeling import LanguageModel
from rivals import contenders, match_of

ROWS = 300
BY_DAY = DataSection(uri="u", label="text", time="day", block_days=1)


class Measured(LanguageModel):
    def __init__(self):
        """Only its score is needed."""

    def build_model(self):
        raise NotImplementedError


def contender(nats_per_byte, bytes_per_token, seed, longest=200):
    """A model whose vocabulary cuts the same bytes into other tokens, and documents at a length."""
    random = np.random.default_rng(seed)
    sizes = np.random.default_rng(0).integers(40, 200, ROWS).clip(max=longest).astype(float)
    weights = np.round(sizes / bytes_per_token)
    losses = nats_per_byte * sizes / weights * random.uniform(0.98, 1.02, ROWS)
    statistics = np.stack([losses, sizes / weights], axis=1)
    days = [date(2025, 1, 1 + row // 20) for row in range(ROWS)]
    frame = pl.DataFrame({"text": [""] * ROWS, "day": days})
    return Contender(Measured(), Scored(losses, statistics, weights, weights, frame))


def match(challenger, champion):
    blocks = blocks_of(challenger.scored.rows, BY_DAY, SplitSection())
    return Match(challenger, champion, blocks, blocks.draws(300), 0.95)


def test_bits_per_byte_compares_two_vocabularies_and_perplexity_does_not():
    pairs, letters = contender(1.0, 3.0, 1), contender(1.2, 1.0, 2)
    bits, perplexity = compare(match(pairs, letters), ("bits_per_byte", "perplexity"))
    assert bits.improvement.estimate == pytest.approx(0.2 / np.log(2), rel=0.05)
    assert bits.improvement.low > 0
    assert perplexity.champion is None
    assert perplexity.improvement is None
    assert perplexity.challenger > 10, "a token of three bytes is harder than a byte"


def test_equal_vocabularies_compare_by_every_metric():
    comparisons = compare(
        match(contender(1.0, 3.0, 1), contender(1.2, 3.0, 2)), ("bits_per_byte", "perplexity")
    )
    assert all(comparison.improvement.low > 0 for comparison in comparisons)


def verdict_of(challenger, champion, **gate):
    # The fifteen days are made independently.
    gate = {"min_effective_days": 7.0, "slices": ("day",), "slice_min_rows": 20, **gate}
    section = GateSection(must_beat=(), **gate)
    return reach_verdict(
        section, challenger, Champion("7", champion),
        JudgedRows(blocks_of(challenger.scored.rows, BY_DAY, SplitSection())),
        weights_sha256="", baselines=MeasuredBaselines(), performance=(),
    )  # fmt: skip


@pytest.mark.parametrize("metric", ["perplexity", "loss"])
def test_a_champion_whose_metric_does_not_compare_is_not_beaten(metric):
    verdict = verdict_of(contender(1.0, 3.0, 1), contender(1.2, 1.0, 2), metric=metric)
    reason = verdict.reasons[0]
    assert (verdict.promote, reason.held) == (False, False)
    assert f"{metric} is not comparable" in reason.detail
    assert "use bits_per_byte" in reason.detail
    assert verdict.slices == ()


def test_an_invariant_metric_decides_between_two_vocabularies():
    better, worse = contender(1.0, 3.0, 1), contender(1.2, 1.0, 2)
    assert verdict_of(better, worse, metric="bits_per_byte").promote
    assert not verdict_of(worse, better, metric="bits_per_byte").promote


def test_a_guard_that_does_not_compare_is_broken_not_dropped():
    verdict = verdict_of(
        contender(1.0, 3.0, 1), contender(1.2, 1.0, 2), max_regression={"perplexity": 5.0}
    )
    (guard,) = [reason for reason in verdict.reasons if "no regression" in reason.condition]
    assert verdict.reasons[0].held
    assert not guard.held
    assert "perplexity is not comparable" in guard.detail


def test_cutting_documents_elsewhere_wins_nothing():
    champion = contender(1.2, 3.0, 2)
    shortened = contender(1.0, 3.0, 1, longest=100)
    verdict = verdict_of(shortened, champion, metric="bits_per_byte")
    assert not verdict.promote
    assert "different parts" in verdict.reasons[0].detail
    assert verdict_of(
        shortened, contender(1.2, 3.0, 2, longest=100), metric="bits_per_byte"
    ).promote


@pytest.mark.parametrize("is_heavier", [False, True])
def test_a_loss_of_classes_compares_under_equal_weights_only(task, is_heavier):
    """Weights may be fitted, as those of classes by their shares, and differ between trainings."""
    better, worse = contenders(task, np.random.default_rng(1), errors=(0.2, 1.0))
    labels = worse.scored.labels
    heavier = replace(worse.scored, weights=np.where(labels == 1, 2.0, 1.0))
    rival = replace(worse, scored=heavier) if is_heavier else worse
    loss, area = compare(match_of(better, rival), ("loss", "roc_auc"))
    assert area.improvement.low > 0, "it ignores weights"
    assert (loss.champion is None) == is_heavier
    assert ("loss is not comparable: the models weight the rows" in loss.incomparable) == is_heavier


def test_the_mean_loss_of_a_block_counts_weights():
    scored = contender(1.0, 1.0, 1).scored
    for block in performance_by_block((scored,), BY_DAY):
        rows = scored.rows["day"].to_numpy() == np.datetime64(block.start.date())
        expected = np.average(scored.losses[rows], weights=scored.weights[rows])
        assert block.loss == pytest.approx(expected, rel=1e-12)
        assert block.rows == 20


def test_rows_without_a_time_lie_in_no_block():
    scored = contender(1.0, 1.0, 1).scored
    last = pl.int_range(pl.len()) < ROWS - 20
    undated = replace(scored, rows=scored.rows.with_columns(pl.when(last).then("day")))
    blocks = performance_by_block((scored,), BY_DAY)
    assert performance_by_block((undated,), BY_DAY) == blocks[:-1]


def test_the_mean_loss_of_a_file_counts_weights(tmp_path):
    random, files = np.random.default_rng(0), []
    for number, size in enumerate((300, 40, 1)):
        path = tmp_path / f"p{number}.parquet"
        table = {"id": [f"{number}-{row}" for row in range(size)], "text": ["a"] * size}
        numbers = {"loss": random.random(size), "weight": random.integers(1, 9, size) * 1.0}
        pl.DataFrame(table | numbers).write_parquet(path)
        digest = sha256_of_file(path)
        files.append(
            DataFile(uri=str(path), size_bytes=path.stat().st_size, sha256=digest, rows=size)
        )
    snapshot = Snapshot(
        data=DataSection(uri=str(tmp_path), label="text", ids=("id",)), split=SplitSection(),
        files=tuple(files), columns=dict.fromkeys(("id", "text"), "String")
        | dict.fromkeys(("loss", "weight"), "Float64"),
        rows=341, split_rows={},
    )  # fmt: skip
    dataset = Dataset(snapshot)
    scored = {}
    for split in (Split.VALIDATION, Split.TEST):
        rows = dataset.scan(split).collect()
        losses, weights = rows["loss"].to_numpy(), rows["weight"].to_numpy()
        scored[split] = Scored(losses, losses, losses, weights, rows)
    held_out = pl.concat([each.rows for each in scored.values()])
    found = performance_by_file(scored, dataset)
    assert [block.title for block in found][:2] == ["file p0.parquet", "file p1.parquet"]
    assert sum(block.rows for block in found) == held_out.height
    for block in found:
        own = held_out.filter(pl.col("id").str.starts_with(f"{block.files[0].path[1]}-"))
        assert block.rows == own.height
        expected = np.average(own["loss"], weights=own["weight"])
        assert block.loss == pytest.approx(expected, rel=1e-12)
