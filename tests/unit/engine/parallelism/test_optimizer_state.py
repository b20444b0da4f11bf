import pytest
import torch
from torch import nn

from perennial.engine.parallelism.parallelize import divide_evenly, with_absent_states


@pytest.mark.parametrize(
    ("sizes", "parts", "expected"),
    [
        ([1, 8, 3, 4], 2, [[8], [4, 3, 1]]),
        ([5, 5, 5], 3, [[5], [5], [5]]),
        ([0, 0, 7], 3, [[7], [0], [0]]),
        ([2, 3], 1, [[3, 2]]),
    ],
)
def test_weights_are_divided_by_size_and_no_part_stays_without(sizes, parts, expected):
    divided = divide_evenly([nn.Parameter(torch.zeros(size)) for size in sizes], parts)
    assert [[weight.numel() for weight in part] for part in divided] == expected


def test_weights_whose_state_is_elsewhere_have_an_empty_one():
    groups = [{"params": ["a", "b"]}, {"params": ["c"]}]
    assert with_absent_states({"b": {"step": 1}}, groups) == {"a": {}, "b": {"step": 1}, "c": {}}
