"""The mean of several states of a model."""

import pytest
import torch
from torch import nn

from perennial.select_checkpoint.rescoring import add_to_mean


class Tied(nn.Module):
    """Two layers with one weight, a normalization with statistics and a counter, no bias at all."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("empty", torch.empty(0))
        self.register_buffer("also_empty", torch.empty(0, 2))


def filled(value, batches):
    model = Tied()
    with torch.no_grad():
        for tensor in (model.first.weight, model.norm.running_mean, model.norm.running_var):
            tensor.fill_(value)
        model.norm.num_batches_tracked.fill_(batches)
    return model


@pytest.mark.parametrize("values", [(1.0, 3.0), (1.0, 2.0, 6.0), (4.0, 0.0, 0.0, 0.0)])
def test_each_state_counts_alike_and_tied_weights_move_once(values):
    mean = filled(values[0], 1)
    for count, value in enumerate(values[1:], start=2):
        add_to_mean(mean.state_dict(), filled(value, count).state_dict(), count)
    expected = sum(values) / len(values)
    for tensor in (mean.first.weight, mean.norm.running_mean, mean.norm.running_var):
        torch.testing.assert_close(tensor.detach(), torch.full_like(tensor, expected))
    assert mean.second.weight is mean.first.weight


def test_a_counter_is_that_of_the_newest():
    mean = filled(1.0, 10)
    add_to_mean(mean.state_dict(), filled(2.0, 30).state_dict(), 2)
    assert mean.norm.num_batches_tracked == 30


def test_a_mask_of_minus_infinity_stays_one():
    """A buffer that every checkpoint holds alike, as that of attention to earlier positions."""
    mask = torch.full((3, 3), float("-inf")).triu(1)
    mean, new = mask.clone(), mask.clone()
    add_to_mean({"mask": mean}, {"mask": new}, 2)
    assert torch.equal(mean, mask)
    partly = torch.tensor([float("-inf"), 1.0])
    add_to_mean({"bias": partly}, {"bias": torch.tensor([float("-inf"), 3.0])}, 2)
    assert partly.tolist() == [float("-inf"), 2.0]


def test_complex_weights_are_averaged_as_real_ones_are():
    mean = torch.tensor([1.0 + 2.0j, 5.0j])
    add_to_mean({"filter": mean}, {"filter": torch.tensor([3.0 - 2.0j, 5.0j])}, 2)
    assert mean.tolist() == [2.0 + 0.0j, 5.0j]
