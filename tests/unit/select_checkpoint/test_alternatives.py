"""What early stopping with patience would have shipped."""

import pytest

from perennial.contracts.training import EvaluationPoint, ScoredCandidate
from perennial.select_checkpoint.selection import alternatives, early_stop

CURVES = {
    "ever better": ([1, 2, 3, 4, 5], (4, 4)),
    "best, then worse": ([1, 3, 2, 2, 2, 9], (1, 4)),
    "a late best within its patience": ([1, 3, 2, 2, 4, 3], (4, 5)),
    "patience ends with the curve": ([3, 1, 1, 1], (0, 3)),
    "equal is not a new best": ([2, 2, 2, 2, 5], (0, 3)),
    "one point": ([7], (0, 0)),
}


@pytest.mark.parametrize("name", CURVES)
def test_early_stopping_ships_the_best_until_its_patience_ends(name):
    values, expected = CURVES[name]
    assert early_stop(values, patience=3) == expected


def test_more_patience_waits_longer():
    assert early_stop([1, 3, 2, 2, 2, 9], patience=4) == (5, 5)


def candidate(step, loss, **more):
    metrics = {"loss": loss}
    return ScoredCandidate(
        step=step, uri="", metrics=metrics, standard_error=0.0, kept_as=("best",), **more
    )


SAMPLED = {10: 0.9, 20: 0.5, 30: 0.6, 40: 0.7, 50: 0.8, 60: 0.4, 70: 0.9}
POINTS = [
    EvaluationPoint(step=step, train_loss=1.0, metrics={"loss": loss})
    for step, loss in SAMPLED.items()
]


def test_each_way_is_named_with_what_it_ships_and_when_it_ends():
    chosen = candidate(60, 0.55)
    kept = [chosen, candidate(70, 0.85), candidate(60, 0.1, averaged=True)]
    ways = alternatives(POINTS, kept, chosen, metric="loss", direction="minimize")
    found = {way.name: way for way in ways}
    last = found["last checkpoint"]
    assert (last.step, last.ends, last.sampled, last.figure) == (70, 70, 0.9, 0.85)
    assert last.lead == pytest.approx(0.3)
    best = found["best loss during training"]
    assert (best.step, best.ends, best.figure, best.lead) == (60, 70, 0.55, 0.0)
    assert f"{best.lead:.2g}" == "0"  # not minus zero
    stopped = found["early stopping, patience 3"]
    assert (stopped.step, stopped.ends, stopped.sampled) == (20, 50, 0.5)
    assert (stopped.figure, stopped.lead) == (None, None)


def test_a_maximized_metric_turns_the_lead_around():
    chosen = candidate(10, 0.7)
    kept = [chosen, candidate(70, 0.6)]
    ways = alternatives(POINTS, kept, chosen, metric="loss", direction="maximize")
    assert ways[0].lead == pytest.approx(0.1)
    assert ways[1].step == 10


def test_without_evaluations_there_is_nothing_to_follow():
    chosen = candidate(10, 0.7)
    assert alternatives([], [chosen], chosen, metric="loss", direction="minimize") == ()
