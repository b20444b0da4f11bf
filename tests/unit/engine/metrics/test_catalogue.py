"""Every metric equals scikit-learn's or its definition, whole or in parts, and names where it cannot be computed."""

import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics as reference
from sklearn.calibration import calibration_curve

from metric_ranks import add_up_together, made, reading, shard_of
from perennial.contracts.errors import BadTaskError
from perennial.engine.metrics import arrays, catalogue
from perennial.engine.metrics.catalogue import (
    FAMILIES,
    directions_of,
    find_metric,
    named_metrics,
)
from perennial.engine.metrics.metric import UndefinedMetricError
from tiny_training import run_ranks, tiny_job

ROWS = (2, 7, 500)
EVERY = [*named_metrics(), "top_2_accuracy", "pinball_90", "recall_at_3", "precision_at_3",
         "ndcg_at_3"]  # fmt: skip


def hard(p):
    return (p > 0.5).astype(int) if p.ndim == 1 else p.argmax(axis=1)


def all_classes(p):
    return list(range(2 if p.ndim == 1 else p.shape[1]))


def one_against_rest(area, y, p):
    if p.ndim == 1:
        return area(y, p)
    return np.mean([area(y == code, p[:, code]) for code in np.unique(y).astype(int)])


def gap_in_bins(y, p, strategy):
    sure, right = (p, y) if p.ndim == 1 else (p.max(axis=1), hard(p) == y)
    share, mean = calibration_curve(right, sure, n_bins=15, strategy=strategy)
    edges = np.linspace(0, 1, 16)
    edges = edges if strategy == "uniform" else np.percentile(sure, edges * 100)
    counts = np.bincount(np.searchsorted(edges[1:-1], sure), minlength=15)
    return np.abs(share - mean) @ counts[counts > 0] / len(y)


def rank_gain(worth, statistics, weights):
    """The mean over every place among equals, one by one."""
    found = []
    for row in statistics:
        sides = [
            np.mean([worth(ahead + place) for place in range(1, tied + 1)])
            for ahead, tied in row.astype(int).reshape(-1, 2)
        ]
        found.append(np.mean(sides))
    return np.average(found, weights=weights)


def bits_per_byte(y, p):
    tokens = p[:, 0] @ y, p[:, 1] @ y
    return tokens[0] / np.log(2) / tokens[1]


EXPECTED = {
    "accuracy": lambda y, p: reference.accuracy_score(y, hard(p)),
    "balanced_accuracy": lambda y, p: reference.recall_score(
        y, hard(p), labels=np.unique(y), average="macro"
    ),
    "macro_f1": lambda y, p: reference.f1_score(y, hard(p), average="macro", zero_division=0),
    "f1": lambda y, p: reference.f1_score(y, hard(p)),
    "precision": lambda y, p: reference.precision_score(y, hard(p)),
    "recall": lambda y, p: reference.recall_score(y, hard(p)),
    "matthews_corrcoef": lambda y, p: reference.matthews_corrcoef(y, hard(p)),
    "top_2_accuracy": lambda y, p: reference.top_k_accuracy_score(y, p, k=2, labels=all_classes(p)),
    "log_loss": lambda y, p: reference.log_loss(y, p, labels=all_classes(p)),
    "brier": lambda y, p: reference.brier_score_loss(
        y, p, labels=all_classes(p), scale_by_half=p.ndim == 1
    ),
    "expected_calibration_error": partial(gap_in_bins, strategy="uniform"),
    "calibration_error_equal_mass": partial(gap_in_bins, strategy="quantile"),
    "roc_auc": partial(one_against_rest, reference.roc_auc_score),
    "average_precision": partial(one_against_rest, reference.average_precision_score),
    "rmse": reference.root_mean_squared_error,
    "mae": reference.mean_absolute_error,
    "median_absolute_error": reference.median_absolute_error,
    "r2": reference.r2_score,
    "mape": reference.mean_absolute_percentage_error,
    "wape": lambda y, p: np.abs(p - y).sum() / np.abs(y).sum(),
    "smape": lambda y, p: np.mean(2 * np.abs(p - y) / (np.abs(p) + np.abs(y))),
    "pinball_90": partial(reference.mean_pinball_loss, alpha=0.9),
    "mean_loss": lambda y, p: np.average(p[:, 0], weights=y),
    "micro_f1": lambda y, p: 2 * p[:, 0].sum() / (p[:, 1] + p[:, 2]).sum(),
    "entity_f1": lambda y, p: 2 * p[:, 0].sum() / (p[:, 1] + p[:, 2]).sum(),
    "token_accuracy": lambda y, p: np.average(p[:, 0], weights=y),
    "exact_match": lambda y, p: p[:, 0].mean(),
    "forecast_rmse": lambda y, p: np.sqrt(np.average(p[:, 0], weights=y)),
    "forecast_mae": lambda y, p: np.average(p[:, 0], weights=y),
    "forecast_pinball": lambda y, p: np.average(p[:, 0], weights=y),
    "perplexity": lambda y, p: np.exp(np.average(p[:, 0], weights=y)),
    "bits_per_byte": bits_per_byte,
    "mean_reciprocal_rank": lambda y, p: rank_gain(lambda rank: 1 / rank, p, y),
    "mean_average_precision": lambda y, p: rank_gain(lambda rank: 1 / rank, p, y),
    "precision_at_3": lambda y, p: rank_gain(lambda rank: (rank <= 3) / 3, p, y),
    "recall_at_3": lambda y, p: rank_gain(lambda rank: rank <= 3, p, y),
    "ndcg_at_3": lambda y, p: rank_gain(lambda r: (r <= 3) / np.log2(1 + r), p, y),
}


def cases():
    for name in EVERY:
        kinds = sorted(find_metric(name).kinds)
        for kind in kinds:
            if (name, kind) != ("top_2_accuracy", "binary"):
                yield from ((name, kind, rows, tied) for rows in ROWS for tied in (False, True))


def test_every_metric_is_compared():
    assert set(EXPECTED) == set(EVERY)
    assert len(EVERY) == len(named_metrics()) + len(FAMILIES)


@pytest.mark.parametrize(("name", "kind", "rows", "tied"), list(cases()))
def test_it_equals_the_reference_on_few_many_and_tied_rows(name, kind, rows, tied):
    predictions, labels = made(name, kind, rows, tied=tied)
    if name == "top_2_accuracy" and tied:
        pytest.skip("scikit-learn's order of equal scores is not defined")
    expected = EXPECTED[name](labels, predictions)
    found = reading(name).measure(predictions, labels)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)
    order = np.random.default_rng(1).permutation(rows)
    assert reading(name).measure(predictions[order], labels[order]) == pytest.approx(
        found, rel=1e-12, abs=1e-14
    )


@pytest.mark.parametrize(
    ("name", "kind"), [(n, sorted(find_metric(n).kinds)[-1]) for n in EVERY if find_metric(n).sums]
)
def test_sums_of_ragged_and_empty_parts_add_up_where_promised(name, kind):
    metric, (predictions, labels) = reading(name), made(name, kind, 500)
    parts = [shard_of(500, rank, 4) for rank in range(4)]
    assert [len(range(500)[part]) for part in parts] == [333, 0, 166, 1]
    sums = [
        metric.sums(predictions[p], labels[p], (np.zeros(len(labels[p]), dtype=np.int64), 1))
        for p in parts
        if metric.adds_up or len(labels[p])
    ]
    found = float(metric.figure(sum(sums))[0])
    adds_up = found == pytest.approx(metric.measure(predictions, labels), rel=1e-12)
    assert adds_up == metric.adds_up
    index = np.arange(500) % 7
    grouped = metric.sums(predictions, labels, (index, 7))
    whole = metric.sums(predictions, labels, (np.zeros(500, dtype=np.int64), 1))
    np.testing.assert_allclose(grouped.sum(axis=0), whole[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", EVERY)
def test_it_is_the_same_in_parts_that_fit_memory(name, monkeypatch):
    metric, kind = reading(name), sorted(find_metric(name).kinds)[-1]
    predictions, labels = made(name, kind, 500, tied=True)
    at_once = metric.measure(predictions, labels)
    monkeypatch.setattr(arrays, "NUMBERS_AT_ONCE", 64)
    parts = list(arrays.parts_of(predictions))
    assert len(parts) > 5
    assert sum(len(labels[part]) for part in parts) == 500
    assert metric.measure(predictions, labels) == pytest.approx(at_once, rel=1e-12)


def test_what_adds_up_takes_no_memory_that_grows_with_the_rows():
    predictions = np.full((200_000, 20), 0.05)
    labels = np.arange(200_000.0) % 20
    tracemalloc.start()
    find_metric("log_loss").measure(predictions, labels)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < predictions.nbytes / 3, "two copies of it when measured at once"


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_find_what_one_finds(root, processes):
    ranks = partial(add_up_together, tuple(EVERY))
    assert run_ranks(tiny_job(root, processes=processes), ranks) == [0] * processes


ONES = np.ones(4)
HALF = np.array([0.0, 0.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("name", "predictions", "labels", "needs"),
    [
        ("roc_auc", HALF, ONES, "two classes"),
        ("roc_auc", np.eye(3)[[0, 1, 2, 0]], ONES, "two classes"),
        ("average_precision", HALF, 0 * ONES, "two classes"),
        ("matthews_corrcoef", HALF, ONES, "two classes"),
        ("f1", 0 * ONES, 0 * ONES, "the second class"),
        ("precision", 0 * ONES, HALF, "a prediction of the second class"),
        ("recall", HALF, 0 * ONES, "the second class"),
        ("top_3_accuracy", np.eye(3)[[0, 1, 2, 0]], HALF, "more than 3 classes"),
        ("r2", HALF, ONES / 3, "labels that differ"),
        ("mape", HALF, HALF, "labels that are not 0"),
        ("wape", HALF, 0 * ONES, "a label that is not 0"),
        ("bits_per_byte", np.array([[1.0, 0.0, 0.0, 1.0]] * 4), ONES, "a byte of text"),
        ("accuracy", ONES[:0], ONES[:0], "a row"),
        ("rmse", ONES[:0], ONES[:0], "a row"),
    ],
)
def test_what_the_rows_do_not_define_is_reported(name, predictions, labels, needs):
    with pytest.raises(UndefinedMetricError, match=f"{name} is undefined.*\n.*{needs}"):
        reading(name).measure(predictions, labels)


def test_a_prediction_that_is_no_number_is_not_taken_for_an_undefined_metric():
    assert np.isnan(find_metric("accuracy").measure(np.array([np.nan, 1.0]), np.array([0.0, 1.0])))


@pytest.mark.parametrize(
    ("name", "predictions", "labels", "value"),
    [
        ("matthews_corrcoef", ONES, HALF, 0.0),
        ("smape", np.array([0.0, 1.0]), np.array([0.0, 1.0]), 0.0),
        ("balanced_accuracy", HALF, ONES, 0.5),
        ("average_precision", HALF, HALF, 1.0),
        ("expected_calibration_error", HALF, HALF, 0.0),
        ("expected_calibration_error", ONES, HALF, 0.5),
        ("top_1_accuracy", np.full((3, 3), 1 / 3), np.array([0.0, 1.0, 2.0]), 1 / 3),
    ],
)
def test_conventions_at_the_edges(name, predictions, labels, value):
    assert reading(name).measure(predictions, labels) == pytest.approx(value)


@pytest.mark.parametrize("name", ["acuracy", "top_0_accuracy", "pinball_100", "recall_at_"])
def test_a_name_that_nobody_measures_is_refused(name):
    with pytest.raises(BadTaskError, match="no '"):
        directions_of(name)


def test_a_number_in_a_name_is_kept_as_written():
    assert directions_of("pinball_97.50", "top_10_accuracy") == {
        "pinball_97.50": "minimize", "top_10_accuracy": "maximize",
    }  # fmt: skip


def test_the_readme_lists_every_metric_with_its_meaning():
    text = (Path(catalogue.__file__).parent / "README.md").read_text()
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    families = {name: made_of("1") for name, (_, made_of) in FAMILIES.items()}
    for name, metric in {**named_metrics(), **families}.items():
        better = "higher" if metric.direction == "maximize" else "lower"
        adds_up = "yes" if metric.adds_up else "no"
        assert f" | {better} | {adds_up} | {metric.meaning} | " in rows[name], name
