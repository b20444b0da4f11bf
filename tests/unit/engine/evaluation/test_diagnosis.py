"""Each shape of curve gets its advice, and healthy curves get none of it."""

import numpy as np
import pytest

from perennial.contracts.training import EvaluationPoint
from perennial.engine.evaluation.diagnosis import Diagnosis, diagnose, is_still_improving

STEPS = np.arange(1, 41)


def points(loss, train, metric=None, noise=0.002, seed=0):
    random = np.random.default_rng(seed)
    loss = loss + noise * random.normal(size=len(STEPS))
    train = train + noise * random.normal(size=len(STEPS))
    metric = 1 - loss if metric is None else metric + noise * random.normal(size=len(STEPS))
    return [
        EvaluationPoint(
            step=int(step) * 10, train_loss=t, metrics={"loss": value, "accuracy": accuracy}
        )
        for step, value, t, accuracy in zip(STEPS, loss, train, metric, strict=True)
    ]


FALLING = 0.3 + 0.5 * np.exp(-STEPS / 15)
FALLING_ON = 0.8 - 0.01 * STEPS
CONVERGED = 0.3 + 0.5 * np.exp(-STEPS / 6)
SATURATED = 0.3 + 0.5 * np.exp(-STEPS / 2)
OVERFITTED = SATURATED + 0.004 * np.maximum(0, STEPS - 12)
DIVERGING = 0.3 + 0.4 * np.exp(-STEPS / 3) + 0.02 * np.maximum(0, STEPS - 15)
FLAT = np.full(len(STEPS), 0.7)

CASES = {
    "still improving": (points(FALLING_ON, FALLING_ON), "train longer"),
    "overfitting": (points(OVERFITTED, FALLING_ON), "overfitting from step"),
    "saturated": (points(SATURATED, FALLING), "does not improve measurably after"),
    "diverging": (points(DIVERGING, DIVERGING), "training loss rises from step"),
    "nothing learned": (points(FLAT, FLAT), "not better in the second half"),
    "noisy": (points(CONVERGED, FALLING, noise=0.25), "jumps by"),
    "best at the start": (
        points(OVERFITTED, FALLING_ON, metric=0.9 - 0.005 * STEPS),
        "in the first 10%",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_shape_gets_its_advice(name):
    curve, advice = CASES[name]
    assert any(advice in finding for finding in diagnose(curve, "accuracy", "maximize").findings)


@pytest.mark.parametrize("name", [name for name in CASES if name != "diverging"])
def test_a_bug_is_suspected_only_when_the_training_loss_rises(name):
    curve, _ = CASES[name]
    assert "training loss rises" not in " ".join(diagnose(curve, "accuracy", "maximize").findings)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("alarm", ["overfitting", "training loss rises", "jumps by", "not better"])
def test_a_healthy_curve_raises_no_alarm(seed, alarm):
    curve = points(CONVERGED, FALLING, noise=0.004, seed=seed)
    assert alarm not in " ".join(diagnose(curve, "accuracy", "maximize").findings)


def test_overfitting_names_the_step_at_which_it_begins():
    findings = diagnose(CASES["overfitting"][0], "loss", "minimize").findings
    finding = next(text for text in findings if "overf" in text)
    step = int(finding.split("from step ")[1].split(" ")[0])
    assert 60 <= step <= 160


def test_a_well_timed_training_needs_no_change():
    healthy = points(CONVERGED, CONVERGED, noise=0.002, seed=3)
    found = diagnose(healthy, "loss", "minimize")
    assert found == Diagnosis(("no problem found in the curves",), "nothing", 400)


def test_too_few_points_are_reported_instead_of_a_diagnosis():
    found = diagnose(CASES["overfitting"][0][:5], "accuracy", "maximize")
    text = "5 evaluations are too few for a diagnosis: evaluate at least 8 times"
    assert found == Diagnosis((text,), "nothing", None)


def test_a_curve_without_any_noise_is_read_too():
    straight = points(FALLING_ON, FALLING_ON, noise=0.0)
    assert "train longer" in " ".join(diagnose(straight, "loss", "minimize").findings)
    constant = points(FLAT, FLAT, noise=0.0)
    assert "not better" in " ".join(diagnose(constant, "loss", "minimize").findings)


BUDGETS = {  # 400 steps were trained
    "still improving": ("longer", 800, 800),
    "overfitting": ("regularise", 80, 220),
    "saturated": ("shorter", 80, 270),
    "diverging": ("bug", None, None),
    "noisy": ("nothing", 400, 400),
    "nothing learned": ("nothing", 400, 400),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_a_shape_gets_its_word_and_the_next_budget(name):
    curve, _ = CASES[name]
    advice, low, high = BUDGETS[name]
    found = diagnose(curve, "accuracy", "maximize")
    assert found.advice == advice
    if low is None:
        assert found.next_steps is None
    else:
        assert low <= found.next_steps <= high
        assert found.next_steps % 10 == 0


def test_a_curve_that_flattens_is_given_less_than_one_that_does_not():
    flattening = 0.3 + 0.5 * np.exp(-STEPS / 15)
    shorter = diagnose(points(flattening, flattening, noise=0.0005), "loss", "minimize")
    longer = diagnose(points(FALLING_ON, FALLING_ON), "loss", "minimize")
    assert shorter.advice == longer.advice == "longer"
    assert 400 < shorter.next_steps <= longer.next_steps == 800


def test_the_budget_reaches_what_it_promises():
    """Trained as long as proposed, another quarter would gain hardly a hundredth."""

    def true(steps):
        return 0.3 + 0.5 * np.exp(-steps / 13)

    proposed = diagnose(points(true(STEPS), true(STEPS), noise=0.0003), "loss", "minimize")
    assert proposed.advice == "longer"
    ends = proposed.next_steps / 10
    gained = true(STEPS[0]) - true(ends)
    assert true(0.75 * ends) - true(ends) < 0.02 * gained


@pytest.mark.parametrize(
    ("curve", "improves"),
    [(FALLING_ON, True), (FALLING, True), (SATURATED, False), (OVERFITTED, False), (FLAT, False)],
)
def test_a_curve_that_improves_after_its_start_is_distinguished_from_one_that_does_not(
    curve, improves
):
    seen = points(curve, curve, noise=0.002, seed=4)
    assert is_still_improving(seen, "loss", "minimize") is improves
    assert is_still_improving(seen, "accuracy", "maximize") is improves
    assert not is_still_improving(seen[:5], "loss", "minimize")


def test_of_a_thousand_healthy_curves_at_most_one_in_a_hundred_is_called_faulty():
    """Noise of a hundredth of the gain, or of a tenth; advice on the length is not a fault."""
    faults = 0
    for seed in range(1000):
        noise = 0.005 if seed % 2 else 0.04
        curve = points(CONVERGED, FALLING, noise=noise, seed=1000 + seed)
        found = diagnose(curve, "loss", "minimize")
        alarms = ("overfitting", "training loss rises", "jumps by", "not better")
        faults += any(alarm in text for alarm in alarms for text in found.findings)
    assert faults <= 10


def test_noise_is_not_taken_for_learning():
    """The best of twenty evaluations beats the first by chance; that is not a reason to shorten."""
    found = [
        diagnose(points(FLAT, FLAT, noise=0.01, seed=seed), "accuracy", "maximize")
        for seed in range(200)
    ]
    assert np.mean(["not better" in each.findings[0] for each in found]) >= 0.9
    assert np.mean([each.advice in ("shorter", "longer") for each in found]) <= 0.05


@pytest.mark.parametrize("seed", range(20))
def test_learning_that_begins_late_is_no_noise(seed):
    late = np.where(STEPS[-4] > STEPS, 0.9, 0.3)
    found = diagnose(points(late, late, noise=0.01, seed=seed), "loss", "minimize")
    assert not any("jumps by" in text for text in found.findings)
    assert found.advice == "longer"


def test_two_points_that_rise_by_chance_are_no_reason_to_train_longer():
    """The last quarter of eight evaluations has no noise of its own to be compared with."""
    last = [
        diagnose(points(SATURATED, SATURATED, noise=0.01, seed=seed)[:8], "accuracy", "maximize")
        for seed in range(200)
    ]
    assert np.mean([each.advice == "longer" for each in last]) <= 0.05
    rising = points(FALLING_ON, FALLING_ON, noise=0.002)[:8]
    assert diagnose(rising, "accuracy", "maximize").advice == "longer"
