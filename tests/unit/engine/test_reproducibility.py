import random

import numpy as np
import torch
from torch import nn

from perennial.engine.reproducibility import (
    StepRandomness,
    derived_seed,
    make_deterministic,
    seeded_model,
)


def test_seeds_differ_between_all_combinations():
    seeds = {
        derived_seed(seed, rank, step)
        for seed in range(5)
        for rank in range(5)
        for step in range(40)
    }
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_reproducible_kernels_can_be_given_up_for_fast_ones():
    for enabled in (False, True):  # what the other tests run with comes last
        make_deterministic(enabled=enabled)
        assert torch.get_deterministic_debug_mode() == int(enabled)
        assert torch.backends.cudnn.benchmark is not enabled


def draw_of_every_library():
    return [torch.rand(()).item(), random.random(), np.random.random()]


class Drawing:
    def build_model(self):
        model = nn.Module()
        model.register_buffer("drawn", torch.tensor(draw_of_every_library()))
        return model


def test_the_initial_model_depends_on_the_seed_alone_whatever_library_it_draws_from():
    first, again, other = (seeded_model(Drawing(), seed).drawn for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not (first == other).any()


def draw(rank, step, *, after=()):
    randomness = StepRandomness(seed=1, rank=rank, device=torch.device("cpu"))
    for earlier in (*after, step):
        randomness.begin(earlier)
    return draw_of_every_library()


def test_a_step_draws_the_same_whatever_came_before():
    assert draw(0, 7) == draw(0, 7, after=range(7))


def test_ranks_and_steps_draw_different_numbers():
    masks = [draw(rank, step) for rank in (0, 1) for step in (0, 1)]
    for library in zip(*masks, strict=True):
        assert len(set(library)) == 4
