"""Layout: assigns parts of the data and of the model to processes."""

from dataclasses import dataclass, field
from typing import Self, TypeAlias

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement

from perennial.contracts.errors import PerennialError
from perennial.engine.config.parallelism import Parallelism
from perennial.engine.config.training import TrainingSection

DIMENSIONS = ("pipeline", "replicate", "shard", "context", "expert", "tensor")
"""Outermost first: neighbours communicate most. Different rows lie along `replicate`, `shard` and
`expert`, parts of the same rows along `context`."""

_Form: TypeAlias = tuple[tuple[str, ...], tuple[Placement, ...]]


@dataclass(frozen=True)
class Layout:
    """The meshes of processes and this one's place in them.

    Attributes:
        mesh: All of `DIMENSIONS`.
        dense: `pipeline, replicate, shard, tensor`, where `shard` are all processes with different
            tokens: over them weights are sharded and their gradients reduced.
        sparse: `pipeline, replicate, shard, expert, tensor`: the same for the weights of experts,
            which lie whole on none of them.
        sizes: Processes along each dimension.
        place: This process's index along each dimension.
    """

    mesh: DeviceMesh
    dense: DeviceMesh
    sparse: DeviceMesh
    sizes: dict[str, int]
    place: dict[str, int]
    _counts: dict[_Form, bool] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, training: TrainingSection, world_size: int, device: torch.device) -> Self:
        """Return the contract's layout; every process calls it together.

        Raises:
            PerennialError: the dimensions do not multiply to the number of processes.
        """
        size = dimension_sizes(training.parallelism, world_size)
        tokens = size["shard"] * size["context"] * size["expert"]
        mesh = init_device_mesh(device.type, tuple(size.values()), mesh_dim_names=DIMENSIONS)
        dense = init_device_mesh(
            device.type,
            (size["pipeline"], size["replicate"], tokens, size["tensor"]),
            mesh_dim_names=("pipeline", "replicate", "shard", "tensor"),
        )
        sparse = dense
        if size["expert"] > 1:
            sparse = init_device_mesh(
                device.type,
                (*dense.shape[:2], tokens // size["expert"], size["expert"], size["tensor"]),
                mesh_dim_names=("pipeline", "replicate", "shard", "expert", "tensor"),
            )
        coordinate = mesh.get_coordinate() or ()
        return cls(mesh, dense, sparse, size, dict(zip(DIMENSIONS, coordinate, strict=True)))

    def size(self, dimension: str) -> int:
        """Return the number of processes along one dimension."""
        return self.sizes[dimension]

    @property
    def data_size(self) -> int:
        """Return into how many parts a global batch is divided."""
        return self.size("replicate") * self.size("shard") * self.size("expert")

    @property
    def data_rank(self) -> int:
        """Return which part of every global batch this process computes."""
        place = self.place
        group = place["replicate"] * self.size("shard") + place["shard"]
        return group * self.size("expert") + place["expert"]

    @property
    def averaging_size(self) -> int:
        """Return the number of processes, with different tokens, that average gradients."""
        return self.data_size * self.size("context")

    @property
    def random_rank(self) -> int:
        """Return a rank that is equal for processes of a tensor group: they draw the same masks."""
        stage = self.place["pipeline"] * self.data_size + self.data_rank
        return stage * self.size("context") + self.place["context"]

    @property
    def is_first_of_tensor_group(self) -> bool:
        """Whether this process represents those that compute the same losses."""
        return self.place["tensor"] == 0

    @property
    def is_first_of_rows(self) -> bool:
        """Whether this process represents those of its stage with the same rows."""
        return self.place["tensor"] == self.place["context"] == 0

    def counts(self, gradient: Tensor) -> bool:
        """Whether this process is the first of those that hold this part of a gradient.

        Stages of a pipeline have parameters of their own, so all of them count.
        """
        form: _Form = ((), ())
        if isinstance(gradient, DTensor):
            form = (gradient.device_mesh.mesh_dim_names or (), gradient.placements)
        # Asked for every parameter at every step, and there are only a few forms.
        known = self._counts.get(form)
        if known is None:
            known = self._counts[form] = self._counts_form(*form)
        return known

    def _counts_form(self, names: tuple[str, ...], placements: tuple[Placement, ...]) -> bool:
        divided = {"pipeline"}
        for name, placement in zip(names, placements, strict=True):
            if not placement.is_replicate():
                divided.add(name)
        # `shard` of `dense` runs along context and expert as well; that of `sparse`, along context.
        if "shard" in divided:
            divided |= {"context"} if "expert" in names else {"context", "expert"}
        return all(index == 0 for name, index in self.place.items() if name not in divided)


def dimension_sizes(parallelism: Parallelism, world_size: int) -> dict[str, int]:
    """Return the processes along each of `DIMENSIONS`; `shard` takes what the others leave.

    Raises:
        PerennialError: they do not multiply to the number of processes.
    """
    asked = {
        "pipeline": parallelism.pipeline,
        "replicas": parallelism.replicas,
        "expert": parallelism.expert,
        "context": parallelism.context,
        "tensor": parallelism.tensor,
    }
    product = 1
    for degree in asked.values():
        product *= degree
    shards, rest = divmod(world_size, product)
    if rest:
        used = {name: degree for name, degree in asked.items() if degree > 1}
        text = ", ".join(f"{name} = {degree}" for name, degree in used.items())
        raise PerennialError(
            f"training.parallelism needs a multiple of {product} processes, but there "
            f"{'is' if world_size == 1 else 'are'} {world_size}",
            evidence=f"its dimensions are: {text}",
            action=f"set resources.num_processes to a multiple of {product}, or smaller dimensions",
        )
    return {
        "pipeline": parallelism.pipeline,
        "replicate": parallelism.replicas,
        "shard": shards,
        "context": parallelism.context,
        "expert": parallelism.expert,
        "tensor": parallelism.tensor,
    }
