import logging
import math

import pytest
import torch

from perennial.contracts.errors import TrainingFailedError
from perennial.engine.checkpoints.folder import Progress
from perennial.engine.config.training import Anomalies
from perennial.engine.resilience.guard import Guard, Judgement
from tiny_training import tiny_section

NAN, INFINITY = math.nan, math.inf


def guard(precision="fp32", progress=None, **anomalies) -> Guard:
    # A window under `ignore` is refused in a contract; here it shows that spikes are ignored.
    settings = Anomalies(**anomalies).model_copy(update={"spike_window_steps": 8})
    section = tiny_section(precision=precision).model_copy(update={"anomalies": settings})
    return Guard.resume(section, progress or Progress())


def judged(each: Guard, *losses: float) -> list[Judgement]:
    return [each.judge(step, [loss], 1.0) for step, loss in enumerate(losses, start=1)]


@pytest.mark.parametrize(
    ("loss", "norm"), [(NAN, 1.0), (INFINITY, 1.0), (1.0, NAN), (1.0, INFINITY), (NAN, NAN)]
)
def test_what_is_not_finite_stops_the_training(loss, norm):
    assert guard().judge(1, [loss], norm) is Judgement.STOP


def test_a_loss_that_no_one_looked_at_stops_it_too():
    each = guard()
    assert each.judge(9, [1.0, NAN, NAN], INFINITY) is Judgement.STOP
    assert each.bad_step == 8, "the step of the first bad loss, not the one that read it"


def test_a_bad_gradient_is_that_of_the_step_that_reads_it():
    each = guard()
    assert each.judge(9, [1.0, 1.0, 1.0], INFINITY) is Judgement.STOP
    assert each.bad_step == 9


def test_skipping_is_limited_and_survives_a_resume():
    each = guard(not_finite="skip", max_skipped=2)
    assert judged(each, NAN, 1.0, NAN) == [Judgement.SKIP, Judgement.APPLY, Judgement.SKIP]
    resumed = guard(progress=each.record(Progress()), not_finite="skip", max_skipped=2)
    assert resumed.judge(4, [NAN], 1.0) is Judgement.STOP


def test_float16_halves_its_scale_before_anything_else_happens():
    each = guard("fp16")
    before = each.scale.value
    assert each.judge(1, [1.0], INFINITY) is Judgement.RESCALE
    assert each.scale.value == before / 2
    assert each.skipped == 0
    assert each.judge(2, [NAN], 1.0) is Judgement.STOP, "a loss does not depend on the scale"


def test_float16_gives_up_when_nothing_is_left_to_halve():
    each = guard("fp16")
    judgements = [each.judge(step, [1.0], INFINITY) for step in range(1, 18)]
    assert judgements == [Judgement.RESCALE] * 16 + [Judgement.STOP]


JUMP = [1.0] * 10 + [9.0] * 5


@pytest.mark.parametrize(
    ("policy", "last", "is_reported"),
    [
        ("ignore", Judgement.APPLY, False),
        ("warn", Judgement.APPLY, True),
        ("rewind", Judgement.REWIND, True),
    ],
)
def test_a_jump_of_the_loss_is_answered_as_the_contract_states(policy, last, is_reported, caplog):
    each = guard(spike=policy)
    with caplog.at_level(logging.WARNING):
        assert judged(each, *JUMP) == [Judgement.APPLY] * 14 + [last]
    assert ("since step=11" in caplog.text) is is_reported


@pytest.mark.parametrize("policy", ["ignore", "warn", "rewind"])
def test_a_healthy_loss_is_applied_in_silence(policy, caplog):
    losses = (2.0 * 0.98 ** torch.arange(60.0) + 0.1 * torch.rand(60)).tolist()
    assert set(judged(guard(spike=policy), *losses)) == {Judgement.APPLY}
    assert caplog.text == ""


def test_losses_read_together_are_judged_like_losses_read_one_by_one():
    each = guard(spike="rewind")
    assert each.judge(10, JUMP[:10], 1.0) is Judgement.APPLY
    assert each.judge(17, [*JUMP[10:], 9.0, 9.0], 1.0) is Judgement.REWIND
    assert each.spike_start == 11


def test_rewinds_are_limited_and_survive_a_resume():
    each = guard(spike="rewind", max_rewinds=2)
    each.begin_rewind()
    resumed = guard(progress=each.record(Progress()), spike="rewind", max_rewinds=2)
    resumed.begin_rewind()
    with pytest.raises(TrainingFailedError, match="after 2 rewinds"):
        resumed.begin_rewind()
