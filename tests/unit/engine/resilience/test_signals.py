"""Each signal is found in a planted curve, once, and in none of the examples' real ones."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from perennial.contracts.training import EvaluationPoint, StepPoint
from perennial.engine.resilience.signals import INTERVALS, REMEDIES, SIGNS, SignalWatch

# Of the contracts in `examples/`, as trained on two processes; and of one of them with more steps.
CURVES = json.loads((Path(__file__).parent / "curves_of_examples.json").read_text())


def history(losses, **signals):
    """Points of a logging interval of 20 steps; a signal is one value or one per point."""
    values = {
        "step": [20 * (place + 1) for place in range(len(losses))],
        "learning_rate": 1.0, "gradient_norm": 1.0, "examples_per_second": 1.0, "data_wait_share": 0.0,
        **signals,
    }  # fmt: skip
    return [
        StepPoint(
            loss=float(loss),
            **{
                name: value[place] if isinstance(value, list) else value
                for name, value in values.items()
            },
        )
        for place, loss in enumerate(losses)
    ]


def evaluations(losses, steps=()):
    steps = steps or range(100, 100 * len(losses) + 1, 100)
    return [
        EvaluationPoint(step=step, train_loss=1.0, metrics={"loss": float(loss)})
        for step, loss in zip(steps, losses, strict=True)
    ]


def kinds(points, measured=()):
    return [each.kind for each in SignalWatch.of(points, measured).episodes]


def falling(count, start=2.0, end=0.5, noise=0.0, seed=1):
    """A loss that falls to its floor like a power of the step, as most do."""
    steps = np.arange(1, count + 1)
    curve = end + (start - end) * steps**-0.5
    return curve * (1.0 + noise * np.random.default_rng(seed).normal(size=count))


FLAT = np.full(40, math.log(2.0)) + np.random.default_rng(3).normal(0.0, 1e-3, 40)
PLANTED = {
    "clipping": history(falling(20), clipped_share=0.9),
    "exploding": history(falling(20), gradient_norm=[1.0] * 12 + [30.0, 2.0, 50.0] + [1.0] * 5),
    "vanishing": history(np.full(20, 2.3), gradient_norm=[0.3] * 5 + [1e-5] * 15),
    "plateau": history(FLAT),
    "idle_device": history(falling(20), device_busy=0.4, data_wait_share=0.5),
}


@pytest.mark.parametrize("kind", [*SIGNS])
def test_a_planted_curve_shows_its_signal_once_and_no_other(kind):
    (found,) = SignalWatch.of(PLANTED[kind], ()).episodes
    assert found.kind == kind
    assert found.remedy == REMEDIES[kind]


def test_a_loss_of_the_same_rows_that_swings_oscillates():
    swinging = [0.9, 0.7, *[0.5, 0.65] * 4]
    (found,) = SignalWatch.of((), evaluations(swinging)).episodes
    assert (found.kind, found.from_step, found.to_step) == ("oscillation", 800, None)
    assert "swings by 0.15 around 0.65" in found.evidence


@pytest.mark.parametrize("name", sorted(CURVES))
def test_the_examples_train_without_a_signal(name):
    curve = CURVES[name]
    points = history(
        curve["losses"],
        step=curve["steps"],
        learning_rate=curve["learning_rates"],
        gradient_norm=curve["gradient_norms"],
        clipped_share=curve["clipped_shares"],
    )
    steps, losses = zip(*curve["evaluations"], strict=True)
    assert len(points) >= INTERVALS
    assert kinds(points, evaluations(losses, steps)) == []


HEALTHY = {
    "falls to its floor": history(falling(60, noise=0.01)),
    "falls slowly": history(
        np.linspace(2.0, 1.6, 60) + np.random.default_rng(2).normal(0, 0.01, 60)
    ),
    "noisy batches": history(falling(60, noise=0.5)),
    "negative, as densities are": history(-np.log(np.arange(2, 62))),
    "stands because the rate has decayed": history(
        np.concatenate([falling(30), np.full(30, 0.5)]),
        learning_rate=[1.0] * 30 + [0.05] * 30,
    ),
    "memorised, with small gradients": history(
        np.concatenate([falling(10), np.full(20, 1e-6)]), gradient_norm=[1.0] * 10 + [1e-6] * 20
    ),
    "one long gradient at the start": history(falling(20), gradient_norm=[40.0] + [1.5] * 19),
    "a tenth is clipped": history(falling(20), clipped_share=0.1),
    "a busy device": history(falling(20), device_busy=0.93),
    "a CPU": history(falling(20), device_busy=None),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_curves_show_nothing(name):
    assert kinds(HEALTHY[name]) == []


@pytest.mark.parametrize(
    "losses",
    [
        falling(20, noise=0.01),
        [0.9, 0.6, *[0.5, 0.51] * 5],  # turns by 2%
        [2.0, 0.5, *[0.01, 0.02] * 5],  # a hundredth of the start
        [1.0, 0.5, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75],  # overfits: a trend
        [0.5, 0.9] * 3,  # too few
    ],
)
def test_healthy_evaluations_show_nothing(losses):
    assert kinds((), evaluations(losses)) == []


def test_an_episode_ends_after_some_calm_and_a_later_one_is_another():
    calm, bad = [1.0] * (2 * INTERVALS), [20.0] * 4
    points = history(falling(38), gradient_norm=[*calm, *bad, *calm, *bad, *calm][:38])
    first, second = SignalWatch.of(points, ()).episodes
    assert first.from_step < first.to_step < second.from_step < second.to_step
    assert first.period == f"step {first.from_step:,} to {first.to_step:,}"


def test_a_short_pause_does_not_begin_another_episode():
    norms = ([20.0, 20.0, 1.0, 1.0, 1.0, 1.0] * 6)[:30]
    assert kinds(history(falling(30), gradient_norm=norms)) == ["exploding"]


def test_only_what_begins_is_reported_and_a_resumed_watch_goes_on_alike():
    points = PLANTED["exploding"]
    watch = SignalWatch()
    begun = [len(watch.log(point)) for point in points]
    assert sum(begun) == 1
    for cut in range(len(points)):
        resumed = SignalWatch.of(points[:cut], ())
        assert [len(resumed.log(point)) for point in points[cut:]] == begun[cut:]
        assert resumed.episodes == watch.episodes


@pytest.mark.parametrize(
    ("shares", "is_constant"),
    [
        ([1.0] * 4, False),
        ([1.0] * 5, True),
        ([0.5] * 5, False),
        ([0.5, 0.5, 0.5, 0.5, 0.6], True),
        ([0.0] * 5 + [1.0, 1.0, 1.0], True),
    ],
)
def test_more_than_half_of_the_last_intervals_is_constant_clipping(shares, is_constant):
    points = history(falling(len(shares)), clipped_share=shares)
    assert (kinds(points) == ["clipping"]) == is_constant


@pytest.mark.full
def test_few_losses_that_fall_to_a_floor_pass_and_flat_ones_do():
    random, steps = np.random.default_rng(0), np.arange(1, 101)
    rates = [float(rate) for rate in 0.5 * (1.0 + np.cos(np.pi * steps / 100))]
    false, found = 0, 0
    for _ in range(200):
        end, power = random.uniform(0.1, 1.0), random.uniform(0.3, 1.0)
        start, noise = end * random.uniform(1.1, 5.0), 10 ** random.uniform(-3.5, -1.0)
        curve = (end + (start - end) * steps**-power) * (1.0 + noise * random.normal(size=100))
        false += bool(kinds(history(curve, learning_rate=rates)))
        flat = 0.7 + 1e-3 * random.normal(size=100)
        found += "plateau" in kinds(history(flat, learning_rate=rates))
    assert false <= 6
    assert found == 200
