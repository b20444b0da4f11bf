"""float16 with an adaptive loss scale trains like float32, and reports what it skipped."""

import pytest
import torch

from tiny_training import finished, largest_difference, tiny_job, weights


@pytest.mark.parametrize(
    "strategy", ["single", pytest.param("ddp", marks=pytest.mark.full), "fsdp"]
)
def test_float16_stays_close_and_is_really_used(root, strategy):
    full = finished(tiny_job(root, strategy=strategy))
    half = finished(tiny_job(root, strategy=strategy, precision="fp16"))
    assert all(tensor.dtype == torch.float32 for tensor in weights(half).values())
    assert 0.0 < largest_difference(weights(full), weights(half)) < 0.01
    assert half.evaluations[-1].metrics["loss"] == pytest.approx(
        full.evaluations[-1].metrics["loss"], rel=0.02
    )


def test_short_reductions_are_close_and_really_short(root):
    long, short = (
        finished(tiny_job(root, precision="bf16", reduce_precision=kind))
        for kind in ("fp32", "compute")
    )
    assert 0.0 < largest_difference(weights(long), weights(short)) < 0.01


@pytest.mark.parametrize("strategy", ["single", "fsdp"])
def test_gradient_norms_are_those_of_the_unscaled_gradients(root, strategy):
    full = finished(tiny_job(root, strategy=strategy, log_every_steps=1, steps=8))
    half = finished(tiny_job(root, strategy=strategy, log_every_steps=1, steps=8, precision="fp16"))
    expected = {point.step: point.gradient_norm for point in full.history}
    # An update whose gradient overflowed is left out, and has no point.
    common = [point for point in half.history if point.step <= 4]
    assert len(common) >= 3
    for point in common:
        assert point.gradient_norm == pytest.approx(expected[point.step], rel=0.05)
