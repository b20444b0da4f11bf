"""Checkpoints of a few bytes, for tests that need no tensors."""

from pathlib import Path

from perennial.engine.checkpoints.checkpoint_store import CheckpointStore
from perennial.engine.checkpoints.folder import CheckpointManifest, Progress, partial_path

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


def upload(store: CheckpointStore, step: int) -> None:
    """What ranks do before the first one commits."""
    partial = partial_path(store.folder, step)
    partial.mkdir(parents=True)
    for name, content in FILES.items():
        (partial / name).write_bytes(content)
    store.upload(step, FILES)


def put(store: CheckpointStore, step: int, **settings) -> None:
    upload(store, step)
    store.commit(manifest(step, **settings))


def flip_a_bit(file: Path, position: int | None = None) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if position is None else position] ^= 4
    file.write_bytes(bytes(content))
