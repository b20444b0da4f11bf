"""Records: what each rank of a trial stores, and digests that compare tensors bit for bit."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from perennial.engine.data.batching import Indices
from perennial.engine.task import Batch, inputs_of


@dataclass(frozen=True)
class StepRecord:
    """One update of one rank.

    Attributes:
        step: Counted from 1.
        loss: Loss of the global batch.
        rows: Rows of this rank.
        examples: A digest of the inputs of each of its examples, as the model received them.
        is_seed_kept: Whether the global seed is still the engine's own after the update.
    """

    step: int
    loss: float
    rows: Indices
    examples: tuple[str, ...]
    is_seed_kept: bool


@dataclass(frozen=True)
class Probe:
    """Random draws of one rank on the same rows as every other rank.

    Attributes:
        losses: Loss of each example, in training mode.
        is_random: Whether the pass drew from a global generator, with any effect: where a row is
            left out once in a thousand draws, none may be.
        augmented: A digest of the augmented rows; empty where `augment` changes nothing.
    """

    losses: Tensor
    is_random: bool
    augmented: str


@dataclass
class RankRecord:
    """The record of one rank of a trial.

    Attributes:
        initial: A digest of the weights before the model was divided.
        steps: The updates.
        start: The initial weights; only on the first rank of the reference trial.
        weights: The final weights of the whole model; only on the first rank of exact trials.
        final: A digest of each final weight, on every rank.
        parameters: Names of the weights that are parameters.
        drifting: Attributes of model and task that changed in training and are not in a checkpoint.
        probe: None in exact trials.
        twins: Stored examples whose inputs repeat another one's.
    """

    initial: str = ""
    steps: list[StepRecord] = field(default_factory=list)
    start: dict[str, Tensor] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    final: dict[str, str] = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()
    drifting: tuple[str, ...] = ()
    probe: Probe | None = None
    twins: int = 0


def write_record(file: Path, record: RankRecord) -> None:
    """Store a rank's record as tensors and plain values: reading them runs no code."""
    plain = {
        **vars(record),
        "start": {name: _plain(each) for name, each in record.start.items()},
        "weights": {name: _plain(each) for name, each in record.weights.items()},
        "steps": [{**vars(each), "rows": torch.from_numpy(each.rows)} for each in record.steps],
        "parameters": sorted(record.parameters),
        "probe": {**vars(record.probe), "losses": _plain(record.probe.losses)}
        if record.probe
        else None,
    }
    torch.save(plain, file)


def read_record(file: Path) -> RankRecord:
    """Read a rank's record.

    Raises:
        Exception: the file is damaged or contains anything but tensors and plain values.
    """
    plain = torch.load(file, weights_only=True)
    plain["steps"] = [
        StepRecord(**{**each, "rows": each["rows"].numpy()}) for each in plain["steps"]
    ]
    plain["parameters"] = frozenset(plain["parameters"])
    plain["probe"] = Probe(**plain["probe"]) if plain["probe"] else None
    return RankRecord(**plain)


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().as_subclass(Tensor)


def compute_digest(tensors: Batch) -> str:
    """Return a digest of names, shapes and every bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        if is_lazy(tensor):
            continue  # has no content before the first forward pass
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(_read_bytes(tensor))
    return digest.hexdigest()


def compute_digests(batch: Batch) -> list[str]:
    """Return a digest of the inputs of each example."""
    inputs = sorted(inputs_of(batch).items())
    rows = len(inputs[0][1])
    return [
        hashlib.sha256(b"".join(_read_bytes(tensor[row]) for _, tensor in inputs)).hexdigest()
        for row in range(rows)
    ]


def _read_bytes(tensor: Tensor) -> bytes:
    if not tensor.numel():
        return b""  # tensors without columns, as of a table without categories, have no bytes
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
