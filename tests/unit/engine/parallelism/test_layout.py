"""Many ranks in one process: meshes need no messages, so a group without any will do."""

from collections import defaultdict

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from perennial.contracts.errors import PerennialError
from perennial.engine.config.parallelism import Parallelism
from perennial.engine.config.training import TrainingSection
from perennial.engine.world.layout import Layout, dimension_sizes

CASES = {
    "data alone": (4, {}, "fsdp"),
    "groups": (4, {"replicas": 2}, "hsdp"),
    "matrices": (4, {"tensor": 2}, "fsdp"),
    "sequences": (4, {"context": 2}, "fsdp"),
    "experts": (8, {"expert": 2, "context": 2}, "fsdp"),
    "all but stages": (16, {"replicas": 2, "expert": 2, "context": 2, "tensor": 2}, "hsdp"),
    "stages": (8, {"pipeline": 2, "replicas": 2}, "hsdp"),
}


def on_every_rank(world_size, parallelism, strategy, look):
    training = TrainingSection(strategy=strategy, parallelism=parallelism)
    seen = []
    for rank in range(world_size):
        dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
        try:
            seen.append(look(Layout.of(training, world_size, torch.device("cpu"))))
        finally:
            dist.destroy_process_group()
    return seen


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_ranks_with_the_same_rows_are_those_of_one_tensor_and_context_group(case):
    world_size, parallelism, _ = case
    places = on_every_rank(*case, lambda layout: (layout.data_rank, layout.place, layout))
    rows = defaultdict(list)
    for data_rank, place, _ in places:
        rows[data_rank].append(place)
    size = places[0][2].data_size
    assert sorted(rows) == list(range(size))
    shared = Parallelism(**parallelism)
    assert world_size == size * shared.tensor * shared.context * shared.pipeline
    for group in rows.values():
        for name in ("replicate", "shard", "expert"):
            assert len({place[name] for place in group}) == 1
    assert places[0][2].averaging_size == size * shared.context


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_dropout_differs_everywhere_but_in_a_tensor_group(case):
    masks = defaultdict(set)
    for random_rank, place in on_every_rank(
        *case, lambda layout: (layout.random_rank, tuple(layout.place.items()))
    ):
        masks[random_rank].add(tuple(item for item in place if item[0] != "tensor"))
    assert all(len(places) == 1 for places in masks.values())
    assert len(masks) == case[0] // Parallelism(**case[1]).tensor


def gradients(layout):
    """A gradient of every kind, with what tells its parts from each other."""
    strategy = ("replicate", "shard") if layout.size("replicate") > 1 else ("shard",)
    meshes = [layout.dense[strategy], layout.dense[(*strategy, "tensor")]]
    if layout.size("expert") > 1:
        meshes.append(layout.sparse[(*strategy, "expert")])
    for mesh in meshes:
        placements = [
            Replicate() if name == "replicate" else Shard(0) for name in mesh.mesh_dim_names
        ]
        coordinate = zip(mesh.get_coordinate(), placements, strict=True)
        which = tuple(index for index, placement in coordinate if placement.is_shard())
        gradient = DTensor.from_local(torch.zeros(1), mesh, placements, run_check=False)
        yield mesh.mesh_dim_names, gradient, which
    yield "whole", torch.zeros(1), ()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_part_of_a_gradient_counts_once(case):
    def look(layout):
        return [
            ((kind, layout.place["pipeline"], which), layout.counts(gradient))
            for kind, gradient, which in gradients(layout)
        ]

    counted = defaultdict(int)
    for parts in on_every_rank(*case, look):
        for part, counts in parts:
            counted[part] += counts
    assert set(counted.values()) == {1}
    assert len(counted) > 1


@pytest.mark.parametrize(
    ("world_size", "parallelism", "message"),
    [
        (4, {"tensor": 3}, r"a multiple of 3 processes, but there are 4"),
        (1, {"context": 2}, r"a multiple of 2 processes, but there is 1"),
        (6, {"replicas": 2, "expert": 2}, r"a multiple of 4 processes.*\n.*replicas = 2, expert"),
    ],
)
def test_dimensions_that_do_not_fit_are_an_error(world_size, parallelism, message):
    with pytest.raises(PerennialError, match=message):
        dimension_sizes(Parallelism(**parallelism), world_size)
