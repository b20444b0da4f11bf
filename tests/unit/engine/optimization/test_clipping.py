from dataclasses import dataclass

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from torch import nn

from perennial.engine.config.optimization import Clipping
from perennial.engine.optimization.clipping import Clipper, local_squared_norm

CPU = torch.device("cpu")


@dataclass
class Place:
    """A layout of which this rank is, or is not, the first."""

    is_first: bool = True

    def counts(self, gradient):
        return self.is_first


def clipper(method, *, norms=(), **settings):
    section = TypeAdapter(Clipping).validate_python({"method": method, **settings})
    return Clipper(section, norms, CPU)


def two_layers():
    """Equal parameters with equal gradients, twice."""
    layers = nn.Linear(7, 5), nn.Linear(7, 5)
    for index, pair in enumerate(zip(*(layer.parameters() for layer in layers), strict=True)):
        for parameter in pair:
            parameter.grad = torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(index)
            )
    return [list(layer.parameters()) for layer in layers]


def norm_of(parameters):
    return local_squared_norm(parameters, Place()).sqrt()


@pytest.mark.parametrize(("max_norm", "is_clipped"), [(0.5, 1.0), (1e3, 0.0)])
def test_clipping_by_norm_equals_pytorchs(max_norm, is_clipped):
    ours, theirs = two_layers()
    expected = nn.utils.clip_grad_norm_(theirs, max_norm)
    norm = norm_of(ours)
    assert float(norm) == pytest.approx(float(expected), rel=1e-6)
    assert float(clipper("norm", max_norm=max_norm).clip(ours, norm, 1.0)) == is_clipped
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize(("max_value", "is_clipped"), [(0.5, 1.0), (1e3, 0.0)])
@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_clipping_by_value_equals_pytorchs(max_value, is_clipped, scale):
    ours, theirs = two_layers()
    nn.utils.clip_grad_value_(theirs, max_value)
    for parameter in ours:
        parameter.grad *= scale
    subject = clipper("value", max_value=max_value)
    subject.observe_clipping(subject.local_excess(ours, scale))
    assert float(subject.clip(ours, norm_of(ours) / scale, scale)) == is_clipped
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.grad, other.grad)


def test_an_update_counts_as_clipped_when_another_rank_is_over_the_limit():
    ours, _ = two_layers()
    subject = clipper("value", max_value=1e3)
    assert float(subject.local_excess(ours, 1.0)) == 0.0
    subject.observe_clipping(torch.tensor(1.0, dtype=torch.float64))
    assert float(subject.clip(ours, norm_of(ours), 1.0)) == 1.0


def test_shards_without_elements_are_no_trouble():
    parameter = nn.Parameter(torch.zeros(0, 3))
    parameter.grad = torch.zeros(0, 3)
    subject = clipper("value", max_value=1.0)
    assert float(subject.local_excess([parameter], 1.0)) == 0.0
    subject.clip([parameter], torch.zeros((), dtype=torch.float64), 1.0)


@pytest.mark.parametrize("method", ["none", "norm", "adaptive"])
def test_the_loss_scale_is_undone_before_the_limit_is_applied(method):
    ours, theirs = two_layers()
    subject, expected = clipper(method), clipper(method)
    for parameter in ours:
        parameter.grad *= 1024.0
    for _ in range(2):
        subject.clip(ours, norm_of(ours) / 1024.0, 1024.0)
        expected.clip(theirs, norm_of(theirs), 1.0)
        for parameter in ours:
            parameter.grad *= 1024.0
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad / 1024.0, other.grad)


def test_without_clipping_gradients_stay_as_they_are():
    ours, theirs = two_layers()
    assert float(clipper("none").clip(ours, norm_of(ours), 1.0)) == 0.0
    assert all(torch.equal(one.grad, two.grad) for one, two in zip(ours, theirs, strict=True))


def test_the_adaptive_limit_is_the_percentile_of_the_unclipped_norms_in_the_window():
    random = np.random.default_rng(3)
    norms = random.lognormal(size=45)
    norms[20] = 1e4
    subject = clipper("adaptive", percentile=75.0, window=16)
    parameter = nn.Parameter(torch.zeros(1))
    for index, norm in enumerate(norms):
        parameter.grad = torch.tensor([norm], dtype=torch.float32)
        flag = subject.clip([parameter], torch.tensor(norm, dtype=torch.float64), 1.0)
        limit = np.percentile(norms[max(index - 15, 0) : index + 1], 75.0)
        assert float(flag) == float(norm > limit)
        assert float(parameter.grad) == pytest.approx(min(norm, limit), rel=1e-5, abs=2e-6)


def test_in_the_long_run_the_adaptive_limit_clips_one_update_in_ten():
    random = np.random.default_rng(4)
    subject = clipper("adaptive")
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    flags = [
        float(subject.clip([parameter], torch.tensor(norm, dtype=torch.float64), 1.0))
        for norm in random.lognormal(size=2000)
    ]
    assert np.mean(flags) == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("before", [0, 3, 10, 11, 25])
def test_the_adaptive_limit_survives_a_resume_bit_for_bit(before):
    norms = np.random.default_rng(5).lognormal(size=40)
    parameter = nn.Parameter(torch.zeros(1))

    def clipped(subject, values):
        found = []
        for norm in values:
            parameter.grad = torch.tensor([norm], dtype=torch.float32)
            subject.clip([parameter], torch.tensor(norm, dtype=torch.float64), 1.0)
            found.append(float(parameter.grad))
        return found

    straight = clipper("adaptive", window=10)
    expected = clipped(straight, norms)
    first = clipper("adaptive", window=10)
    found = clipped(first, norms[:before])
    assert first.observed() == tuple(norms[max(before - 10, 0) : before])
    second = clipper("adaptive", window=10, norms=first.observed())
    assert found + clipped(second, norms[before:]) == expected
    assert second.observed() == straight.observed()


def test_methods_without_memory_have_no_state():
    subject = clipper("norm", norms=(1.0, 2.0))
    ours, _ = two_layers()
    subject.clip(ours, norm_of(ours), 1.0)
    assert subject.observed() == ()


def test_replicated_gradients_are_counted_once():
    layer = nn.Linear(2, 2)
    layer.weight.grad, layer.bias.grad = torch.ones(2, 2), torch.ones(2)
    assert float(local_squared_norm(layer.parameters(), Place())) == pytest.approx(6.0)
    assert float(local_squared_norm(layer.parameters(), Place(is_first=False))) == 0.0


def test_complex_gradients_count_and_are_clipped_by_both_parts():
    weight, scale = nn.Parameter(torch.zeros(3, dtype=torch.cfloat)), nn.Parameter(torch.zeros(2))
    weight.grad = torch.full((3,), 3 + 4j)
    scale.grad = torch.full((2,), 5.0)
    norm = local_squared_norm([weight, scale], None).sqrt()
    assert float(norm) == pytest.approx(5 * 5**0.5)
    assert float(clipper("norm", max_norm=1.0).clip([weight, scale], norm, 1.0)) == 1.0
    assert float(local_squared_norm([weight, scale], None)) == pytest.approx(1.0, rel=1e-4)
    assert torch.allclose(weight.grad.imag / weight.grad.real, torch.full((3,), 4 / 3))
