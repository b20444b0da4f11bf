"""Export: a trained model as one portable folder; imports only what serving has."""

import hashlib
import importlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from perennial.contracts.artifact import write_atomically
from perennial.contracts.errors import (
    BadTaskError,
    DamagedModelError,
    PerennialError,
    join_names,
)
from perennial.contracts.training import Challenger
from perennial.engine.task import Task, load_task

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
ADAPTERS = "perennial.engine.adapters"
# Above it there are several files, named and indexed as huggingface_hub does, whose limit it is.
SHARD_BYTES = 5 * 10**9
# Types and their names in the format, in the order that it aligns them by.
DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.complex64: "C64",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.uint64: "U64",
}


def require_exportable(model: nn.Module) -> None:
    """Check before a training that all of a model's state can be stored as weights.

    Raises:
        BadTaskError: a part is not a tensor, or of a type that the format lacks.
    """
    other = [
        f"{name}: {value.dtype if isinstance(value, Tensor) else type(value).__name__}"
        for name, value in model.state_dict().items()
        if not isinstance(value, Tensor) or value.dtype not in DTYPES
    ]
    if other:
        raise BadTaskError(
            f"the state of {type(model).__name__} cannot be stored as weights",
            evidence=join_names(other, 3),
            action="keep state in buffers of common types; `get_extra_state` may return a tensor",
        )


def write_weights(model: nn.Module, folder: Path, left_out: Collection[str] = ()) -> str:
    """Store a full (unsharded) model's parameters and buffers; return their SHA-256."""
    state = {name: value for name, value in model.state_dict().items() if name not in left_out}
    return write_tensors(
        {name: (v.dtype, v.shape) for name, v in state.items()}, state.__getitem__, folder
    )


def load_exported_task(folder: Path, *, verified: bool = False) -> tuple[Challenger, Task]:
    """Load an export's record and task with its fitted state; verify its weights if they were not.

    Raises:
        DamagedModelError: the weights' file is missing or not the one that was exported.
        BadTaskError: the task's code is gone or refuses its options.
    """
    challenger = Challenger.read(folder)
    weights, found = folder / WEIGHTS_FILE, "" if verified else weights_digest(folder)
    if not verified and found != challenger.weights_sha256:
        raise DamagedModelError(
            f"the weights in {weights} are not those that were exported",
            evidence=f"SHA-256 of {WEIGHTS_FILE}: exported {challenger.weights_sha256}, "
            f"found {found or 'missing'}",
            action="restore the artifact from the store, or train again",
        )
    task = load_task(challenger.task, challenger.options, challenger.columns)
    task.load_state(challenger.task_state)
    return challenger, task


def load_model(folder: Path, device: torch.device | str = "cpu") -> tuple[Task, nn.Module]:
    """Load the task with its fitted state, and the model in evaluation mode.

    Raises:
        DamagedModelError: as `load_exported_task`, or the base of an adapter is damaged.
        PerennialError: the weights do not fit the task's model.
        BadTaskError: the task's code is gone or refuses its options.
    """
    challenger, task = load_exported_task(folder)
    with weights_must_fit(folder, challenger):
        model: nn.Module
        if challenger.adapter is None or challenger.adapter.merge:
            model = task.build_model()
            _load_weights(model, folder)
        else:
            # By name, because what is imported here becomes a requirement of every served model.
            model = importlib.import_module(ADAPTERS).load_adapted_model(task, challenger, folder)
    model.to(device).eval()
    return task, model


@contextmanager
def weights_must_fit(folder: Path, challenger: Challenger) -> Iterator[None]:
    """Turn PyTorch's errors of loading weights into one for people.

    Raises:
        PerennialError: the weights do not fit the task's model.
    """
    try:
        yield
    except RuntimeError as error:
        raise PerennialError(
            f"the weights in {folder / WEIGHTS_FILE} do not fit {challenger.task}",
            evidence=str(error).splitlines()[0],
            action="the task's code changed since; check out the commit in the model's lineage",
        ) from error


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Return name → tensor of a file in the format of safetensors, mapped into memory.

    Raises:
        DamagedModelError: it has another format, or is cut.
    """
    try:
        return safetensors.torch.load_file(file)
    except safetensors.SafetensorError as error:
        raise DamagedModelError(
            f"{file} cannot be read as safetensors",
            evidence=str(error),
            action="find out what wrote it; a complete file in that format is needed",
        ) from error


def open_tensors(file: Path) -> safetensors.safe_open:
    """Open a file in the format of safetensors, in order to read parts of its tensors."""
    return safetensors.safe_open(file, framework="pt")


def weight_files(folder: Path) -> list[Path]:
    """Return the files of an export's weights: one, or shards in order and their index."""
    return sorted(folder.glob("model*.safetensors*"))


def weights_digest(folder: Path) -> str:
    """Return the SHA-256 of an export's weights; empty if a file is missing or altered.

    Of several files, the index's, which has those of all others.
    """
    index, weights = folder / INDEX_FILE, folder / WEIGHTS_FILE
    if not index.is_file():
        return _digest(weights) if weights.is_file() else ""
    try:
        shards = json.loads(index.read_bytes())["metadata"]["sha256"]
        # By file name alone: an altered index must not lead out of the folder.
        intact = all(_digest(folder / Path(name).name) == known for name, known in shards.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    return _digest(index) if intact else ""


def weight_shards(folder: Path) -> list[Path]:
    """Return the files of an export that hold its tensors, of intact weights."""
    index = folder / INDEX_FILE
    if not index.is_file():
        return [folder / WEIGHTS_FILE]
    # Those whose digests were compared, whatever else lies in the folder.
    return [
        folder / Path(name).name for name in json.loads(index.read_bytes())["metadata"]["sha256"]
    ]


def _load_weights(model: nn.Module, folder: Path) -> None:
    """Load weights file by file.

    Raises:
        RuntimeError: they are not those of the model.
    """
    names: set[str] = set()
    for file in weight_shards(folder):
        part = read_tensors(file)
        # No file has all names; the names of all files together are compared below.
        model.load_state_dict(part, strict=False)
        names |= set(part)
    if differing := names ^ set(model.state_dict()):
        raise RuntimeError(f"names differ: {sorted(differing)[:5]}")


def write_tensors(
    layout: Mapping[str, tuple[torch.dtype, torch.Size]],
    read: Callable[[str], Tensor],
    folder: Path,
) -> str:
    """Store tensors one by one, byte for byte as `safetensors` would; return their SHA-256.

    More than `SHARD_BYTES` go to several files and an index, as `transformers` reads them.
    """
    names = in_file_order(layout)
    sizes = {name: dtype.itemsize * shape.numel() for name, (dtype, shape) in layout.items()}
    shards: list[list[str]] = [[]]
    size = 0
    for name in names:
        if shards[-1] and size + sizes[name] > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += sizes[name]
    if len(shards) == 1:
        return _write_file(folder / WEIGHTS_FILE, names, layout, read)
    digests: dict[str, str] = {}
    places: dict[str, str] = {}
    for number, part in enumerate(shards, start=1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        digests[file] = _write_file(folder / file, part, layout, read)
        places |= dict.fromkeys(part, file)
    metadata = {"total_size": sum(sizes.values()), "sha256": digests}
    index = json.dumps({"metadata": metadata, "weight_map": places}, indent=2, sort_keys=True)
    # Last: without the index, the shards of an interrupted export do not count as weights.
    write_atomically(folder / INDEX_FILE, index.encode())
    return hashlib.sha256(index.encode()).hexdigest()


def in_file_order(layout: Mapping[str, tuple[torch.dtype, torch.Size]]) -> list[str]:
    """Return the names of tensors in the order in which `write_tensors` reads each of them once."""
    # Wide types first, so that each tensor is aligned; the order of their names within a type.
    ranks = {dtype: rank for rank, dtype in enumerate(DTYPES)}
    return sorted(layout, key=lambda name: (-ranks[layout[name][0]], name))


def _write_file(
    target: Path,
    names: Sequence[str],
    layout: Mapping[str, tuple[torch.dtype, torch.Size]],
    read: Callable[[str], Tensor],
) -> str:
    """Write one file of tensors; return its SHA-256."""
    header: dict[str, object] = {}
    stop = 0
    for name in names:
        dtype, shape = layout[name]
        start, stop = stop, stop + shape.numel() * dtype.itemsize
        entry = {"dtype": DTYPES[dtype], "shape": list(shape), "data_offsets": [start, stop]}
        header[name] = entry
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    # To a multiple of 8 bytes, as `safetensors` pads it, so that the tensors begin aligned.
    text += b" " * (-len(text) % 8)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.tmp")
    digest = hashlib.sha256()
    with temporary.open("wb") as stream:
        for piece in (len(text).to_bytes(8, "little"), text):
            stream.write(piece)
            digest.update(piece)
        for name in names:
            flat = read(name).detach().cpu().contiguous().reshape(-1)
            content = flat.view(torch.uint8).numpy().data
            stream.write(content)
            digest.update(content)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(target)
    return digest.hexdigest()


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
