import pytest
import torch

from perennial.contracts.errors import PerennialError
from perennial.engine.config.training import TrainingSection
from perennial.engine.precision import (
    GROWTH_STEPS,
    LossScale,
    choose_kernels,
    require_types,
)

HALF, FULL = TrainingSection(precision="fp16"), TrainingSection()


def test_tf32_on_a_cpu_is_refused():
    choose_kernels(FULL, torch.device("cpu"))
    with pytest.raises(PerennialError, match="allow_tf32 = true"):
        choose_kernels(TrainingSection(allow_tf32=True), torch.device("cpu"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"allow_tf32": True}, "has no TF32"), ({"precision": "bf16"}, "only emulates bfloat16")],
)
def test_types_that_an_old_gpu_lacks_are_refused(settings, message):
    training = TrainingSection(**settings)
    with pytest.raises(PerennialError, match=message) as caught:
        require_types(training, "Tesla T4", (7, 5), has_bf16=False)
    assert "Tesla T4 has compute capability 7.5" in caught.value.evidence
    require_types(training, "NVIDIA A100", (8, 0), has_bf16=True)
    require_types(HALF, "Tesla T4", (7, 5), has_bf16=False)


def test_bfloat16_on_a_cpu_is_allowed():
    choose_kernels(TrainingSection(precision="bf16"), torch.device("cpu"))


def test_the_loss_scale_halves_on_overflow_and_doubles_after_a_quiet_time():
    scale = LossScale(HALF)
    before = scale.value
    assert scale.overflowed()
    assert scale.value == before / 2
    for _ in range(GROWTH_STEPS):
        scale.succeeded()
    assert scale.value == before


def test_a_scale_that_cannot_halve_any_more_is_no_excuse():
    scale = LossScale(HALF, value=1.0)
    assert not scale.overflowed()


def test_other_precisions_are_not_scaled():
    scale = LossScale(FULL)
    scale.succeeded()
    assert (scale.value, scale.overflowed()) == (1.0, False)


def test_a_resumed_scale_continues():
    scale = LossScale(HALF, value=8.0, good_steps=GROWTH_STEPS - 1)
    scale.succeeded()
    assert (scale.value, scale.good_steps) == (16.0, 0)
