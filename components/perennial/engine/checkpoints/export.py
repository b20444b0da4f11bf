"""Export: store a checkpoint's weights as one file, without building the model."""

from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from perennial.engine.checkpoints.checkpoint_store import fetch_checkpoint
from perennial.engine.checkpoints.reading import CheckpointReader
from perennial.engine.export import write_tensors


def export_weights(checkpoint: Path | str, folder: Path, *, averaged: bool = False) -> str:
    """Store a checkpoint's weights as `write_weights` does, without building the model.

    Only one tensor at a time is in memory, for any checkpoint size and number of processes.

    Args:
        checkpoint: As in `CheckpointRecord.uri`.
        folder: Folder of the new file.
        averaged: Store the moving average instead of the weights, where there is one.

    Raises:
        DamagedCheckpointError: its bytes are not those that were written.
    """
    reader = CheckpointReader(fetch_checkpoint(str(checkpoint)))
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    keys: dict[str, str] = {}
    for part in ("model", "averaged") if averaged else ("model",):
        names = (key for key in metadata.state_dict_metadata if key.startswith(f"{part}."))
        keys |= {key.removeprefix(f"{part}."): key for key in names}

    def read(name: str) -> Tensor:
        dtype, shape = layout[name]
        tensor = torch.empty(shape, dtype=dtype)
        planner = DefaultLoadPlanner(flatten_state_dict=False)
        planner.set_up_planner({keys[name]: tensor}, metadata, is_coordinator=True)
        reader.read_data(planner.create_local_plan(), planner).wait()
        return tensor

    stored = {name: metadata.state_dict_metadata[key] for name, key in keys.items()}
    layout = {
        name: (found.properties.dtype, found.size)
        for name, found in stored.items()
        if isinstance(found, TensorStorageMetadata)
    }
    return write_tensors(layout, read, folder)
