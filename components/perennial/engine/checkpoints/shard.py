"""Shard: one rank's part of a checkpoint, laid out in memory as the file that it becomes.

The file is what PyTorch's distributed checkpoints consist of, and their reader loads it into any
number of processes. Its layout is the same at every save, so a save copies the tensors to their
places, which is all that training waits for; a thread then writes the image in large pieces,
digesting them on the way, and hardly ever needs the interpreter's lock.
"""

import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from typing_extensions import Buffer, override

from perennial.engine.checkpoints.direct import BLOCK_BYTES, bypass_cache, write_all
from perennial.engine.export import bytes_of

State: TypeAlias = dict[str, Any]
Piece: TypeAlias = bytes | memoryview

# One digest and one write each, during both of which the interpreter's lock is free.
PIECE_BYTES = 16 * 1024 * 1024
# Two fill the memory's bandwidth (25 ms for 306 MB become 14 to 18); the rest is for larger hosts.
COPY_THREADS = 4
ALIGNMENT = 64  # of tensors in the format of `torch.save`


@dataclass(frozen=True)
class Written:
    """A rank's report about the file that it wrote.

    Attributes:
        files: File name → SHA-256.
        items: Position of every value in the file.
        num_bytes: Its size.
        problem: Why it could not be written; empty on success.
        is_outage: Whether the only problem is that the store did not answer.
    """

    files: dict[str, str]
    items: Sequence[WriteResult]
    num_bytes: int
    problem: str = ""
    is_outage: bool = False


@dataclass(frozen=True)
class Slot:
    """A tensor's place in the file, with the bytes that `torch.save` writes before and after it."""

    item: WriteItem
    start: int
    head: bytes
    num_bytes: int
    tail: bytes
    shape: torch.Size
    dtype: torch.dtype

    @property
    def stop(self) -> int:
        """Return its end in the file."""
        return self.start + len(self.head) + self.num_bytes + len(self.tail)


class Shard:
    """The part of a state that this rank writes. All ranks create it together.

    Args:
        state: The state to save; later states must have the same structure.
        group: Processes that plan together.
        is_staged: Keep a copy in (pinned) memory, so that the state may change during the write.
    """

    def __init__(self, state: State, group: dist.ProcessGroup, *, is_staged: bool) -> None:
        self._planner = DefaultSavePlanner()
        plan, self._metadata = _plan(self._planner, state, group)
        self._structure = _structure(self._planner.state_dict)
        self._name = f"__{dist.get_rank()}_0.distcp"
        self._slots, self._others = _lay_out(plan.items, self._planner)
        self._num_bytes = _rounded(self._slots[-1].stop if self._slots else 0, BLOCK_BYTES)
        self._contents: list[bytes] = []
        self._tensors: list[Tensor] = []
        self._copied: torch.cuda.Event | None = None
        self._image: Tensor | None = None
        if is_staged:
            is_on_gpu = any(_is_on_gpu(value) for value in self._planner.state_dict.values())
            self._image = _image(self._slots, self._num_bytes, is_pinned=is_on_gpu)
            self._tensors = _views(self._image, self._slots)

    def fits(self, state: State) -> bool:
        """Whether a state has the structure that this shard was made for."""
        self._set_up(state)
        return _structure(self._planner.state_dict) == self._structure

    @torch.no_grad()
    def take(self, state: State) -> None:
        """Copy this rank's part of a state, or refer to it when nothing is staged."""
        self._set_up(state)
        data = (self._planner.resolve_data(slot.item) for slot in self._slots)
        tensors = [_tensor(each).detach() for each in data]
        self._contents = [_content(self._planner.resolve_data(item)) for item in self._others]
        if self._image is None:
            self._tensors = tensors
            return
        copy(tensors, self._tensors)
        if any(_is_on_gpu(tensor) for tensor in tensors):
            # The next update runs on the same stream, behind these copies; only the writer must
            # wait until the bytes have arrived.
            self._copied = torch.cuda.current_stream().record_event()

    def write(self, folder: Path) -> Written:
        """Write the copied state, hash it on the way, and flush it to disk."""
        folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        num_bytes = 0
        with (folder / self._name).open("wb", buffering=0) as stream:
            bypass_cache(stream, on=self._image is not None)
            for piece in self._pieces():
                digest.update(piece)
                num_bytes += write_all(stream, piece)
            bypass_cache(stream, on=False)
            for content in self._contents:
                digest.update(content)
                num_bytes += write_all(stream, content)
            os.fsync(stream.fileno())
        if self._image is None:
            self._tensors = []
        return Written({self._name: digest.hexdigest()}, self._items(), num_bytes)

    def write_metadata(self, folder: Path, written: Sequence[Written]) -> None:
        """Write the metadata of all ranks' files; called last, on the first rank."""
        if self._metadata is None:
            raise RuntimeError("only the first rank knows the whole plan")
        writer = FileSystemWriter(folder)
        writer.finish(self._metadata, [list(each.items) for each in written])

    def _set_up(self, state: State) -> None:
        self._planner.set_up_planner(state, is_coordinator=dist.get_rank() == 0)

    def _pieces(self) -> Iterator[Piece]:
        if self._copied is not None:
            self._copied.synchronize()
        if self._image is not None:
            image = self._image.numpy().data
            for start in range(0, self._num_bytes, PIECE_BYTES):
                yield image[start : start + PIECE_BYTES]
        else:
            stop = 0
            for slot, tensor in zip(self._slots, self._tensors, strict=True):
                yield bytes(slot.start - stop) + slot.head
                yield bytes_of(tensor)
                yield slot.tail
                stop = slot.stop
            yield bytes(self._num_bytes - stop)

    def _items(self) -> list[WriteResult]:
        places = [(slot.item, slot.start, slot.stop) for slot in self._slots]
        start = self._num_bytes
        for item, content in zip(self._others, self._contents, strict=True):
            places.append((item, start, start + len(content)))
            start += len(content)
        return [
            WriteResult(item.index, stop - start, _StorageInfo(self._name, start, stop - start))
            for item, start, stop in places
        ]


def copy(tensors: list[Tensor], places: list[Tensor]) -> None:
    """Copy tensors to their places in memory, with as many threads as there are idle cores.

    Training waits for it. From a GPU it is only begun: one thread's stream does all of it.
    """
    idle = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    threads = min(COPY_THREADS, idle // torch.get_num_threads(), len(tensors))
    if threads < 2 or any(map(_is_on_gpu, tensors)):
        if tensors:
            torch._foreach_copy_(places, tensors, non_blocking=True)
        return
    shares = [slice(index, None, threads) for index in range(threads)]
    with ThreadPoolExecutor(threads, "checkpoint-copy") as pool:
        begun = [
            pool.submit(torch._foreach_copy_, places[share], tensors[share]) for share in shares
        ]
        for each in begun:
            each.result()


def _plan(
    planner: DefaultSavePlanner, state: State, group: dist.ProcessGroup
) -> tuple[SavePlan, Metadata | None]:
    """Return this rank's part of the plan; replicated bytes are written once."""
    is_first = dist.get_rank() == 0
    planner.set_up_planner(state, is_coordinator=is_first)
    mine = planner.create_local_plan()
    plans: list[Any] | None = [None] * dist.get_world_size() if is_first else None
    dist.gather_object(mine, plans, dst=0, group=group)
    metadata = None
    if plans is not None:
        plans, metadata = planner.create_global_plan(plans)
    received: list[Any] = [None]
    dist.scatter_object_list(received, plans, src=0, group=group)
    return planner.finish_plan(received[0]), metadata


def _structure(flat: State) -> list[object]:
    return [
        (name, value.shape, value.dtype, getattr(value, "placements", None))
        if isinstance(value, Tensor)
        else name
        for name, value in flat.items()
    ]


def _lay_out(
    items: Sequence[WriteItem], planner: DefaultSavePlanner
) -> tuple[list[Slot], list[WriteItem]]:
    """Return the places of the plain tensors, one after another, and the other items."""
    slots: list[Slot] = []
    others: list[WriteItem] = []
    envelopes: dict[tuple[torch.Size, torch.dtype], tuple[bytes, bytes]] = {}
    stop = 0
    for item in items:
        data = planner.resolve_data(item)
        if not _is_plain(data):
            others.append(item)
            continue
        key = (data.shape, data.dtype)
        head, tail = envelopes.get(key) or envelopes.setdefault(key, _envelope(*key))
        start = _rounded(stop, ALIGNMENT)
        slots.append(Slot(item, start, head, data.nbytes, tail, *key))
        stop = slots[-1].stop
    return slots, others


def _envelope(shape: torch.Size, dtype: torch.dtype) -> tuple[bytes, bytes]:
    """Return the bytes that `torch.save` writes before and after a tensor's own bytes."""
    stream = _GapStream()
    with torch.serialization.skip_data():
        torch.save(torch.empty(shape, dtype=dtype), stream)
    head, tail = stream.parts if len(stream.parts) == 2 else (stream.parts[0], bytearray())
    return bytes(head), bytes(tail)


class _GapStream(io.BytesIO):
    """File object that records where the writer skips a tensor's bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [bytearray()]

    @override
    def write(self, data: Buffer, /) -> int:
        self.parts[-1] += data
        return memoryview(data).nbytes

    @override
    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self.parts.append(bytearray())
        return offset


def _image(slots: Sequence[Slot], num_bytes: int, *, is_pinned: bool) -> Tensor:
    room = torch.zeros(num_bytes + BLOCK_BYTES, dtype=torch.uint8, pin_memory=is_pinned)
    image = room[-room.data_ptr() % BLOCK_BYTES :][:num_bytes]
    whole = image.numpy().data
    for slot in slots:
        for start, part in (
            (slot.start, slot.head), (slot.stop - len(slot.tail), slot.tail),
        ):  # fmt: skip
            whole[start : start + len(part)] = part
    return image


def _views(image: Tensor, slots: Sequence[Slot]) -> list[Tensor]:
    starts = (slot.start + len(slot.head) for slot in slots)
    return [
        image[start : start + slot.num_bytes].view(slot.dtype).view(slot.shape)
        for start, slot in zip(starts, slots, strict=True)
    ]


def _tensor(data: io.BytesIO | Tensor) -> Tensor:
    if not isinstance(data, Tensor):
        raise TypeError(f"a state of the same structure has {type(data)} for a tensor")
    return data


def _content(data: io.BytesIO | Tensor) -> bytes:
    if isinstance(data, Tensor):
        stream = io.BytesIO()
        torch.save(data.detach().cpu(), stream)
        return stream.getvalue()
    return data.getvalue()


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _is_plain(data: object) -> TypeGuard[Tensor]:
    """Whether it is a plain tensor: tensor subclasses of libraries consist of several."""
    if not isinstance(data, Tensor) or type(data) not in (Tensor, nn.Parameter):
        return False
    return data.layout is torch.strided and data.numel() > 0


def _is_on_gpu(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_cuda
