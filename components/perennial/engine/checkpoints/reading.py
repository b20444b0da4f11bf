"""Reading: load and export PyTorch's distributed checkpoints without executing pickled code.

PyTorch unpickles a checkpoint's metadata and its non-tensor values, and a pickle can call any
function. Whoever can write to the bucket can also replace the digests, so these do not protect;
here, only the classes that a checkpoint consists of are allowed.
"""

import pickle
from collections import OrderedDict
from collections.abc import Collection
from io import BytesIO
from pathlib import Path, PosixPath
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.serialization import _get_layout
from typing_extensions import override

from perennial.engine.checkpoints.checkpoint_store import fetch_checkpoint
from perennial.engine.checkpoints.folder import DamagedCheckpointError
from perennial.engine.export import write_tensors

METADATA_FILE = ".metadata"
KNOWN: dict[tuple[str, str], Any] = {
    (each.__module__, each.__qualname__): each
    for each in (
        BytesStorageMetadata,
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        OrderedDict,
        StorageMeta,
        TensorProperties,
        TensorStorageMetadata,
        _MEM_FORMAT_ENCODING,
        _StorageInfo,
        _get_layout,
    )
} | {
    ("torch", "Size"): torch.Size,
    ("pathlib", "PosixPath"): PosixPath,
    ("pathlib._local", "PosixPath"): PosixPath,  # as Python 3.13 has it
}


class CheckpointReader(FileSystemReader):
    """Reads the files of a checkpoint in a local folder whose bytes have been verified."""

    def __init__(self, checkpoint: Path) -> None:
        super().__init__(checkpoint)
        self._checkpoint = checkpoint

    @override
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the metadata: where every value is stored.

        Raises:
            DamagedCheckpointError: the file is not PyTorch's metadata, or asks for other classes.
        """
        content = (self._checkpoint / METADATA_FILE).read_bytes()
        try:
            metadata = _Unpickler(BytesIO(content)).load()
        except Exception as error:  # untrusted bytes can raise any exception
            raise _refused(self._checkpoint, METADATA_FILE, error) from error
        if not isinstance(metadata, Metadata):
            raise _refused(self._checkpoint, METADATA_FILE, TypeError(f"a {type(metadata)}"))
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class LoadPlanner(DefaultLoadPlanner):
    """PyTorch's planner, which loads values that are not tensors with the safe unpickler."""

    def __init__(self, checkpoint: Path) -> None:
        super().__init__()
        self._checkpoint = checkpoint

    @override
    def load_bytes(self, read_item: ReadItem, value: BytesIO) -> None:
        try:
            loaded = torch.load(value, weights_only=True)
        except Exception as error:
            raise _refused(self._checkpoint, read_item.storage_index.fqn, error) from error
        path = self.mappings[read_item.dest_index.fqn]
        set_element(self.original_state_dict, path, loaded)


def load_state(state: dict[str, Any], checkpoint: Path, *, no_dist: bool = False) -> None:
    """Load a checkpoint into a state of its structure, in place.

    The bytes of the folder have been verified. With `no_dist` this process loads alone, even if
    it belongs to a process group.

    Raises:
        DamagedCheckpointError: the checkpoint references other classes.
        RuntimeError: it lacks values that the state needs.
    """
    reader, planner = CheckpointReader(checkpoint), LoadPlanner(checkpoint)
    reader.read_metadata()  # `load` makes a text of the error, and of its cause nothing
    try:
        load(state, storage_reader=reader, planner=planner, no_dist=no_dist)
    except CheckpointException as error:
        failures = [failure for failure, _ in error.failures.values()]
        for failure in failures:
            if isinstance(failure, DamagedCheckpointError):
                raise failure from error
        # The library's own error is not an `Exception`: it would look like a request to exit.
        raise RuntimeError("; ".join(map(str, failures[:1]))) from error


def holds(checkpoint: Path, part: str) -> bool:
    """Whether a part of the state is in a checkpoint."""
    return any(name.startswith(f"{part}.") for name in _stored_names(checkpoint))


def leave_out_absent(state: dict[str, Any], checkpoint: Path) -> None:
    """Remove the moments that a checkpoint lacks: weights without gradient have none."""
    if "optimizer" not in state:
        return
    held = {
        ".".join(parts[:length])
        for parts in (name.split(".") for name in _stored_names(checkpoint))
        # The names of weights have dots as well, so every beginning may be the name of one.
        for length in range(3, len(parts))
        if parts[:2] == ["optimizer", "state"]
    }
    moments = state["optimizer"]["state"]
    for weight in [name for name in moments if f"optimizer.state.{name}" not in held]:
        del moments[weight]


def export_weights(checkpoint: Path | str, folder: Path, *, averaged: bool = False) -> str:
    """Store a checkpoint's weights as `write_weights` does, without building the model.

    With `averaged`, the moving average is stored instead, where there is one.

    Only one tensor at a time is in memory, for any checkpoint size and number of processes.

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


def _stored_names(checkpoint: Path) -> Collection[str]:
    return CheckpointReader(checkpoint).read_metadata().state_dict_metadata.keys()


class _Unpickler(pickle.Unpickler):
    @override
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        found = KNOWN.get((module_name, global_name))
        if found is None and module_name == "torch":
            # Number types are pickled by their names in `torch`, which has functions, too.
            found = getattr(torch, global_name, None)
            found = found if isinstance(found, torch.dtype) else None
        if found is None:
            raise pickle.UnpicklingError(f"it references {module_name}.{global_name}")
        return found


def _refused(checkpoint: Path, part: str, error: Exception) -> DamagedCheckpointError:
    reason = str(error).strip().splitlines() or [type(error).__name__]
    return DamagedCheckpointError(
        f"{part} of the checkpoint {checkpoint} is not in PyTorch's format and was not loaded",
        evidence=reason[0],
        action="find out who can write to the store: such a file can be an attempt to run code. "
        "Delete the checkpoint, and train again",
    )
