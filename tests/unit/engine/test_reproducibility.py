import torch

from components.engine.reproducibility import StepRandomness, derived_seed


def test_seeds_differ_between_all_combinations():
    seeds = {
        derived_seed(seed, rank, step)
        for seed in range(5)
        for rank in range(5)
        for step in range(40)
    }
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)


def draw(rank, step, *, after=()):
    randomness = StepRandomness(seed=1, rank=rank, device=torch.device("cpu"))
    for earlier in (*after, step):
        randomness.begin(earlier)
    return torch.rand(3).tolist()


def test_a_step_draws_the_same_whatever_came_before():
    assert draw(0, 7) == draw(0, 7, after=range(7))


def test_ranks_and_steps_draw_different_numbers():
    masks = [draw(rank, step) for rank in (0, 1) for step in (0, 1)]
    assert len({tuple(values) for values in masks}) == 4
