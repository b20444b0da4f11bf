"""Several right answers, worth more or less: exact with ties, in parts, and in a training."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn.metrics import label_ranking_average_precision_score, ndcg_score

from metric_ranks import add_up_together, graded_reading
from perennial.contracts.data import Split
from perennial.contracts.errors import BadTaskError
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.engine.data.batching import fixed_sample
from perennial.engine.evaluation.resampling import Blocks, resample
from perennial.engine.evaluation.scoring import Scored
from perennial.engine.metrics.catalogue import find_metric, require_fit
from perennial.engine.metrics.metric import UndefinedMetricError
from perennial.engine.metrics.right_answers import right_answers
from perennial.engine.task import LABEL, load_task
from ranking_queries import GRADED, PLACES, by_definition, drawn, statistics_of
from tiny_training import finished, run_ranks, tiny_job, weights

ONCE = np.ones(1)


def measured(name, scores, gains, weights=None):
    counts = np.ones(len(scores)) if weights is None else weights
    return graded_reading(name).measure(statistics_of(scores, gains), counts)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", GRADED)
def test_it_is_the_mean_over_every_order_of_equal_scores(name, tied):
    scores, gains = drawn(60, tied=tied)
    counts = np.random.default_rng(1).integers(1, 9, 60).astype(float)
    has_answer = (gains > 0).any(axis=1)
    assert 0 < has_answer.sum() < 60, "queries without a right answer are left out"
    queries = zip(scores[has_answer], gains[has_answer], strict=True)
    each = [by_definition(name, *query) for query in queries]
    expected = np.average(each, weights=counts[has_answer])
    assert measured(name, scores, gains, counts) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("k", [1, 3, 7, 50])
def test_ndcg_equals_scikit_learns_with_and_without_ties(k, tied):
    scores, gains = drawn(200, tied=tied)
    kept = (gains > 0).any(axis=1) & np.isfinite(scores).all(axis=1)
    expected = ndcg_score(gains[kept], scores[kept], k=k)
    assert measured(f"ndcg_at_{k}", scores[kept], gains[kept]) == pytest.approx(expected, rel=1e-12)


def test_mean_average_precision_equals_scikit_learns_where_no_scores_are_equal():
    scores, gains = drawn(200, tied=False)
    kept = (gains > 0).any(axis=1) & np.isfinite(scores).all(axis=1)
    expected = label_ranking_average_precision_score(gains[kept] > 0, scores[kept])
    found = measured("mean_average_precision", scores[kept], gains[kept])
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_model_that_gives_all_candidates_one_score_ranks_at_random():
    gains = np.zeros((1, 1000))
    gains[0, :4] = 1.0
    scores = np.zeros((1, 1000))
    # The first of 4 among 1,000 lies at 1001 / 5 on average; its inverse by the definition.
    places = np.arange(1, 998.0)
    chances = np.cumprod(np.concatenate([[4 / 1000], (997 - places[:-1]) / (1000 - places[:-1])]))
    assert chances @ places == pytest.approx(1001 / 5)
    assert measured("mean_reciprocal_rank", scores, gains) == pytest.approx(chances @ (1 / places))
    assert measured("recall_at_10", scores, gains) == pytest.approx(0.01)
    assert measured("precision_at_10", scores, gains) == pytest.approx(0.004)


def test_one_right_answer_of_gain_one_is_the_metric_without_gains():
    scores = np.round(np.random.default_rng(0).normal(size=(50, 6)), 1)
    gains = np.eye(6)[np.arange(50) % 6]
    with_gains = right_answers(torch.from_numpy(scores), torch.from_numpy(gains), 1).numpy()
    for name in GRADED:
        graded = find_metric(name).reading(("ahead", "tied", "gain"))
        alone = find_metric(name).reading(("ahead", "tied"))
        assert graded.measure(with_gains, np.ones(50)) == alone.measure(
            with_gains[:, :2], np.ones(50)
        )


@pytest.mark.parametrize("processes", [2, 3])
def test_ragged_parts_of_processes_add_up_to_what_one_finds(root, processes):
    ranks = partial(add_up_together, GRADED, graded=True)
    assert run_ranks(tiny_job(root, processes=processes), ranks) == [0] * processes


def test_an_evaluation_of_three_processes_is_that_of_all_rows_at_once(root):
    job = tiny_job(root, processes=3, steps=4, evaluate_every_steps=4)
    model = job.model.model_copy(update={"task": "ranking_queries:Searching"})
    job = job.model_copy(update={"model": model})
    result = finished(job)
    dataset = Dataset(Snapshot.read(root / "snapshot"))
    task = load_task(job.model.task, result.options, result.columns)
    task.load_state(result.task_state)
    sample = fixed_sample(
        dataset.count(Split.VALIDATION), job.training.evaluation_rows, job.training.seed
    )
    assert len(sample) % 3, "ranks with unequal parts"
    batch = task.encode(dataset.collect(dataset.scan(Split.VALIDATION))[sample])
    scores = task.build_model()
    scores.load_state_dict(weights(result))
    with torch.no_grad():
        given = scores(batch["x"]).double().numpy()
    gains = batch[LABEL].double().numpy()
    found = result.evaluations[-1].metrics
    kept = (gains > 0).any(axis=1)
    assert found["ndcg_at_3"] == pytest.approx(ndcg_score(gains[kept], given[kept], k=3), rel=1e-9)
    assert found["mean_average_precision"] == pytest.approx(
        label_ranking_average_precision_score(gains[kept] > 0, given[kept]), rel=1e-9
    )


@pytest.mark.parametrize("name", GRADED)
def test_the_bootstrap_recomputes_it_from_sums_as_from_rows(root, name):
    task = load_task("ranking_queries:Searching", {}, Snapshot.read(root / "snapshot").task_columns)
    task.metrics = {name: "maximize"}
    statistics = statistics_of(*drawn(90, tied=True))
    ones, blocks = np.ones(90), Blocks(np.arange(90) % 9, 9, "group")
    draws = blocks.draws(5)
    found = resample(task, name, Scored(ones, statistics, ones, ones, None), blocks, draws)
    for counts, value in zip(draws, found, strict=True):
        rows = np.repeat(np.arange(90), counts[blocks.index].astype(int))
        assert value == pytest.approx(task.measure(name, statistics[rows], ones[rows]), rel=1e-12)


def test_without_any_right_answer_it_is_undefined_which_is_reported():
    scores, gains = drawn(5, tied=False)
    with pytest.raises(UndefinedMetricError, match="needs an example with a right answer"):
        measured("ndcg_at_3", scores, 0 * gains)


def test_scores_that_are_no_numbers_are_not_taken_for_a_ranking():
    scores, gains = drawn(5, tied=False)
    scores[2, 1] = np.nan
    assert np.isnan(measured("ndcg_at_3", scores, gains))


@pytest.mark.parametrize(
    ("answers", "shown"),
    [
        ([(0, 1, 1), (0, 2, 1)], "one score, two numbers of equals"),
        ([(0, 1, 1), (0, 1, 1)], "two right answers alone at one place"),
        ([(0, 3, 1), (2, 1, 1)], "three share the first places, and the third is another's"),
        ([(0, 1, -1)], "a gain below 0"),
        ([(-1, 1, 1)], "fewer than none ahead"),
        ([(0, 0, 1)], "not even itself"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_numbers_that_no_scores_give_are_a_mistake_of_the_task(answers, shown):
    good, empty = [(0, 1, 1), (1, 1, 1)], (0, 1, 0)
    rows = np.array([good, [*answers, empty][:2]], dtype=float).reshape(2, 6)
    metric = find_metric("ndcg_at_3").reading(("ahead", "tied", "gain") * 2)
    assert metric.measure(rows[:1], ONCE) == 1.0
    with pytest.raises(BadTaskError, match="impossible candidate counts"):
        metric.measure(rows, np.ones(2))


def test_right_answers_are_never_cut_off_in_silence():
    scores, gains = torch.arange(12.0).view(2, 6), torch.ones(2, 6)
    assert right_answers(scores, gains, 6).shape == (2, 18)
    with pytest.raises(BadTaskError, match="6 right answers, but there is room for 5"):
        right_answers(scores, gains, 5)
    with pytest.raises(BadTaskError, match="minus infinity"):
        right_answers(torch.full((2, 6), -torch.inf), gains, 6)


def test_a_place_without_its_gain_is_refused_when_the_task_is_loaded():
    names = ("ahead", "tied", "gain") * PLACES
    require_fit({"ndcg_at_3": "maximize"}, "statistic", names, "Searching")
    with pytest.raises(BadTaskError, match=r"equally often(.|\n)*gain 3 times"):
        require_fit({"ndcg_at_3": "maximize"}, "statistic", names[:-1], "Searching")
