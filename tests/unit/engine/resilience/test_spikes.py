import numpy as np
import pytest

from perennial.engine.resilience.guard import SUSPECTS, SpikeDetector, SpikeState

WINDOW = 100


def alarms(losses, window=WINDOW) -> list[int]:
    detector = SpikeDetector(window, SpikeState())
    return [index for index, loss in enumerate(losses) if detector.observe(float(loss))]


def falling(steps=600, seed=0) -> np.ndarray:
    """A loss that falls from 2.3 to about 0.5, with the noise of batches."""
    noise = np.random.default_rng(seed).normal(size=steps)
    return 0.5 + 1.8 * np.exp(-np.arange(steps) / 150) + 0.08 * noise


HEALTHY = {
    "falling": falling(),
    "constant": np.full(600, 0.7),
    "negative": falling() - 3.0,
    "around zero": np.random.default_rng(1).normal(size=600),
    "heavy tails": 0.3 * np.random.default_rng(2).standard_t(2, size=2000) + 1.0,
    "log-normal": np.random.default_rng(3).lognormal(sigma=1.0, size=2000),
    "rising slowly": np.linspace(1.0, 3.0, 600),
    "full batch, nearly no noise": 1.0 + 1e-6 * np.sin(np.arange(600)) + np.arange(600) * 1e-4,
    "one outlier now and then": np.where(np.arange(600) % 50 == 49, 100.0, 1.0),
    "a level that rises by a third": np.where(np.arange(600) < 300, falling(), falling() * 1.33),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_losses_raise_no_alarm(name):
    assert alarms(HEALTHY[name]) == []


def test_a_thousand_healthy_trainings_raise_no_alarm():
    assert not any(alarms(falling(300, seed)) for seed in range(1000))


@pytest.mark.parametrize("factor", [3.0, 10.0, 1e6])
@pytest.mark.parametrize("base", ["falling", "constant"])
def test_a_jump_that_stays_raises_one_alarm(base, factor):
    losses = HEALTHY[base].copy()
    losses[400:] *= factor
    assert alarms(losses) == [400 + SUSPECTS - 1]


def test_a_negative_loss_that_jumps_raises_an_alarm():
    losses = HEALTHY["negative"].copy()
    losses[400:] += 10
    assert alarms(losses) == [400 + SUSPECTS - 1]


@pytest.mark.parametrize(("length", "expected"), [(SUSPECTS - 1, []), (SUSPECTS, [404])])
def test_a_short_jump_is_forgiven(length, expected):
    losses = HEALTHY["falling"].copy()
    losses[400 : 400 + length] *= 10
    assert alarms(losses) == expected


def test_a_second_jump_is_found_too():
    losses = HEALTHY["falling"].copy()
    losses[300:320] *= 10
    losses[400:420] *= 10
    assert alarms(losses) == [304, 404]


def test_nothing_is_judged_before_the_window_is_full():
    losses = HEALTHY["constant"].copy()
    losses[50:60] *= 10
    assert alarms(losses) == []


@pytest.mark.parametrize("cut", [50, 399, 401, 403, 404, 405, 450])
def test_a_detector_that_was_saved_and_restored_continues_equally(cut):
    losses = HEALTHY["falling"].copy()
    losses[400:] *= 3
    straight, first = SpikeDetector(WINDOW, SpikeState()), SpikeDetector(WINDOW, SpikeState())
    expected = [straight.observe(float(loss)) for loss in losses]
    found = [first.observe(float(loss)) for loss in losses[:cut]]
    saved = SpikeState.from_json(first.state().to_json().encode())
    second = SpikeDetector(WINDOW, saved)
    assert found + [second.observe(float(loss)) for loss in losses[cut:]] == expected
    assert second.state() == straight.state()
