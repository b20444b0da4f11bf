import math

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch.optim import lr_scheduler

from perennial.engine.config.optimization import Schedule
from perennial.engine.optimization.schedule import learning_rate, momentum

STEPS = 40
SCHEDULES = TypeAdapter(Schedule)


def schedule(shape, **settings):
    return SCHEDULES.validate_python({"shape": shape, **settings})


def rates(shape, steps=STEPS, peak=1.0, **settings):
    course = schedule(shape, **settings)
    return [learning_rate(peak, course, step, steps) for step in range(steps)]


def of_pytorch(build, steps=STEPS):
    """Learning rates and momenta of a scheduler of PyTorch with a peak of 0.3."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3, momentum=0.9)
    scheduler = build(optimizer)
    found = []
    for _ in range(steps):
        found.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
        optimizer.step()
        scheduler.step()
    return [list(values) for values in zip(*found, strict=True)]


@pytest.mark.parametrize(
    ("shape", "step", "expected"),
    [
        ("constant", 0, 0.1),
        ("constant", 4, 0.5),
        ("constant", 9, 1.0),
        ("constant", 99, 1.0),
        ("linear", 9, 1.0),
        ("linear", 10, 1.0),
        ("linear", 55, 0.5),
        ("linear", 99, 1 / 90),
        ("cosine", 10, 1.0),
        ("cosine", 55, 0.5),
        ("cosine", 99, 0.5 * (1 + math.cos(math.pi * 89 / 90))),
        ("wsd", 10, 1.0),
        ("wsd", 80, 1.0),
        ("wsd", 85, 0.5),
        ("wsd", 99, 1 - math.sqrt(19 / 20)),
        ("step", 49, 1.0),
        ("step", 50, 0.1),
        ("step", 75, 0.01),
        ("one_cycle", 0, 0.04),
        ("one_cycle", 29, 1.0),
        ("one_cycle", 99, 4e-6),
    ],
)
def test_closed_form(shape, step, expected):
    course = schedule(shape, **({} if shape == "one_cycle" else {"warmup_fraction": 0.1}))
    assert learning_rate(2.0, course, step, 100) == pytest.approx(2.0 * expected)


@pytest.mark.parametrize(
    ("shape", "settings", "build"),
    [
        ("constant", {"warmup_fraction": 0.0}, lambda o: lr_scheduler.ConstantLR(o, 1.0)),
        (
            "constant",
            {"warmup_fraction": 0.2},
            lambda o: lr_scheduler.LinearLR(o, 1 / 8, 1.0, total_iters=7),
        ),
        (
            "step",
            {"warmup_fraction": 0.0, "milestones": (0.25, 0.8), "factor": 0.3},
            lambda o: lr_scheduler.MultiStepLR(o, [10, 32], gamma=0.3),
        ),
        (
            "linear",
            {"warmup_fraction": 0.0, "final_fraction": 0.1},
            lambda o: lr_scheduler.LinearLR(o, 1.0, 0.1, total_iters=STEPS),
        ),
        (
            "cosine",
            {"warmup_fraction": 0.0, "final_fraction": 0.1},
            lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS, eta_min=0.03),
        ),
    ],
    ids=["constant", "warm-up", "step", "linear", "cosine"],
)
def test_it_equals_pytorchs_scheduler(shape, settings, build):
    expected, _ = of_pytorch(build)
    assert rates(shape, peak=0.3, **settings) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rise_fraction", [0.3, 0.25, 0.9])
def test_one_cycle_equals_pytorchs(rise_fraction):
    expected, momenta = of_pytorch(
        lambda o: lr_scheduler.OneCycleLR(o, 0.3, STEPS + 1, pct_start=rise_fraction), STEPS + 1
    )
    course = schedule("one_cycle", rise_fraction=rise_fraction)
    found = [learning_rate(0.3, course, step, STEPS + 1) for step in range(STEPS + 1)]
    assert found == pytest.approx(expected, rel=1e-9)
    found = [momentum(course, step, STEPS + 1) for step in range(STEPS + 1)]
    assert found == pytest.approx(momenta, rel=1e-12)


@pytest.mark.parametrize("shape", ["constant", "linear", "cosine", "step", "wsd"])
@pytest.mark.parametrize("warmup", [0.0, 0.05, 0.8])
@pytest.mark.parametrize("steps", [1, 2, 7, 100])
def test_every_rate_is_positive_and_at_most_the_peak(shape, warmup, steps):
    assert all(0.0 < rate <= 1.0 for rate in rates(shape, steps, warmup_fraction=warmup))


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("rise_fraction", [0.01, 0.3, 0.99])
def test_one_cycle_stays_in_its_limits_at_any_length(steps, rise_fraction):
    found = rates("one_cycle", steps, rise_fraction=rise_fraction)
    assert all(0.0 < rate <= 1.0 for rate in found)
    assert steps == 1 or found[-1] == pytest.approx(4e-6) or rise_fraction == 0.99


@pytest.mark.parametrize("shape", ["linear", "cosine", "step", "wsd"])
def test_it_falls_after_the_warmup_and_never_rises_again(shape):
    found = rates(shape, 50, warmup_fraction=0.2)
    assert found[:10] == sorted(found[:10])
    assert found[9] == found[10] == 1.0, "the peak is reached"
    assert found[10:] == sorted(found[10:], reverse=True)
    assert found[-1] < found[10]


@pytest.mark.parametrize("shape", ["linear", "cosine", "wsd"])
def test_the_rate_behind_the_last_step_is_the_final_one(shape):
    course = schedule(shape, final_fraction=0.1)
    assert learning_rate(1.0, course, 100, 100) == pytest.approx(0.1)
    assert learning_rate(1.0, course, 99, 100) > 0.1


@pytest.mark.parametrize("shape", ["constant", "linear", "cosine", "step", "wsd", "one_cycle"])
def test_a_schedule_of_its_own_length_ignores_the_budget(shape):
    course = schedule(shape, steps=30, allow_other_length=True)
    same = schedule(shape)
    for step in range(30):
        assert learning_rate(1.0, course, step, 1000) == learning_rate(1.0, same, step, 30)
    behind = {learning_rate(1.0, course, step, 1000) for step in range(30, 60)}
    assert len(behind) == 1


def test_only_a_cycle_sets_momentum():
    assert momentum(schedule("cosine"), 3, 10) is None
    assert momentum(schedule("one_cycle", cycle_momentum=False), 3, 10) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shape": "step", "milestones": [0.75, 0.5]}, "ascend"),
        ({"shape": "step", "milestones": []}, "milestones"),
        ({"shape": "wsd", "warmup_fraction": 0.5, "decay_fraction": 0.6}, "exceeds 1"),
        ({"shape": "one_cycle", "warmup_fraction": 0.1}, "warmup_fraction"),
        ({"shape": "cosine", "decay_fraction": 0.1}, "decay_fraction"),
        ({"shape": "cosine", "allow_other_length": True}, "no effect"),
        ({"shape": "exponential"}, "exponential"),
    ],
)
def test_what_would_be_ignored_is_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        SCHEDULES.validate_python(settings, strict=False)
