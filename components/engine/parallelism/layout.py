"""Layout: which process holds which part of the data and of the model?"""

from dataclasses import dataclass
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from components.contracts.errors import PerennialError
from components.engine.config import TrainingSection


@dataclass(frozen=True)
class Layout:
    """A mesh of processes and this one's place in it.

    Attributes:
        mesh: Named dimensions, outermost first: `replicate`, `shard`.
        data_rank: Which part of every global batch this process computes.
        data_size: Into how many parts a global batch is divided.
    """

    mesh: DeviceMesh
    data_rank: int
    data_size: int

    @classmethod
    def of(cls, training: TrainingSection, world_size: int, device: torch.device) -> Self:
        """The layout that a contract asks for; every process calls it together.

        Raises:
            PerennialError: the dimensions do not multiply to the number of processes.
        """
        replicas = training.parallelism.replicas if training.strategy == "hsdp" else 1
        shards, rest = divmod(world_size, replicas)
        if rest:
            raise PerennialError(
                f"training.parallelism.replicas = {replicas} does not divide "
                f"{world_size} processes",
                action="take a divisor, most often the number of machines",
            )
        mesh = init_device_mesh(
            device.type, (replicas, shards), mesh_dim_names=("replicate", "shard")
        )
        return cls(mesh, dist.get_rank(), world_size)

    def counts(self, gradient: Tensor) -> bool:
        """Whether this process is the first of those that hold this part of a gradient."""
        sharded = set()
        if isinstance(gradient, DTensor):
            names = gradient.device_mesh.mesh_dim_names or ()
            sharded = {
                name
                for name, placement in zip(names, gradient.placements, strict=True)
                if placement.is_shard()
            }
        place = zip(self.mesh.mesh_dim_names or (), self.mesh.get_coordinate() or (), strict=True)
        return all(index == 0 for name, index in place if name not in sharded)
