"""Checkpoints of a few bytes, for tests that need no tensors."""

from pathlib import Path

from perennial.engine.checkpoints.folder import CheckpointManifest, Progress, partial_path
from perennial.engine.checkpoints.shelf import Shelf

FILES = {"__0_0.distcp": b"x" * 300, "__1_0.distcp": b"y" * 100, ".metadata": b"where"}


def manifest(step: int, *, fingerprint: str = "f", loss: float = 1.0, **changes):
    return CheckpointManifest(
        fingerprint=fingerprint,
        step=step,
        metrics={"loss": loss},
        files={},
        progress=Progress(step=step),
        **changes,
    )


def hand_in(shelf: Shelf, step: int) -> None:
    """What ranks do before the first one commits."""
    partial = partial_path(shelf.folder, step)
    partial.mkdir(parents=True)
    for name, content in FILES.items():
        (partial / name).write_bytes(content)
    shelf.hand_in(step, FILES)


def put(shelf: Shelf, step: int, **settings) -> None:
    hand_in(shelf, step)
    shelf.commit(manifest(step, **settings))


def flip_a_bit(file: Path, position: int | None = None) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if position is None else position] ^= 4
    file.write_bytes(bytes(content))
