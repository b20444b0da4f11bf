"""Checkpoint folder: which checkpoints exist, are intact, and are kept? Imports no torch.

A checkpoint is written into `step-00000100.partial/`, digested, listed in `checkpoint.json`,
marked by `COMMITTED` (which holds that file's digest) and renamed to `step-00000100/`. It exists
whole or not at all, and a single flipped bit is found when it is read.
"""

import hashlib
import logging
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Literal

from components.clients.object_store import sha256_of_file
from components.contracts.artifact import Artifact, write_atomically
from components.contracts.errors import PerennialError
from components.contracts.section import Section
from components.contracts.training import Direction, EvaluationPoint, StepPoint

MARKER = "COMMITTED"
KeptAs = tuple[Literal["best", "last"], ...]
logger = logging.getLogger(__name__)


class RunningSums(Section):
    """Sums of per-step measurements since the last point that used them."""

    steps: int = 0
    loss: float = 0.0
    gradient_norm: float = 0.0


class Progress(Section):
    """What has been measured up to a step, over all attempts."""

    step: int = 0
    history: tuple[StepPoint, ...] = ()
    evaluations: tuple[EvaluationPoint, ...] = ()
    since_log: RunningSums = RunningSums()
    since_evaluation: RunningSums = RunningSums()
    seconds: float = 0.0
    num_resumes: int = 0
    data_offset: int = 0
    """Global batches of the stream that were left out: update s takes batch s + data_offset."""
    num_skipped: int = 0
    """Updates left out because they were not finite."""
    loss_scale: float = 0.0
    """Of float16; 0 means not used yet."""
    loss_scale_steps: int = 0
    """Updates since it last changed."""


class CheckpointManifest(Artifact):
    """Everything about a checkpoint but its tensors.

    File tree: `checkpoint.json` (this value), `COMMITTED`, and the tensors' files.
    """

    file_name: ClassVar[str] = "checkpoint.json"

    fingerprint: str
    step: int
    metrics: dict[str, float]
    """Validation-sample metrics at this step; empty for one taken because of a signal."""
    files: dict[str, str]
    """File name → SHA-256 of its content."""
    progress: Progress


class DamagedCheckpointError(PerennialError):
    """A checkpoint's bytes are not those that were written."""


def checkpoint_path(folder: Path, step: int) -> Path:
    """The folder of one step's checkpoint."""
    return folder / f"step-{step:08}"


def partial_path(folder: Path, step: int) -> Path:
    """Where one step's checkpoint is written."""
    return checkpoint_path(folder, step).with_suffix(".partial")


def commit(folder: Path, manifest: CheckpointManifest) -> Path:
    """Make the tensors lying in the step's partial folder a checkpoint."""
    partial = partial_path(folder, manifest.step)
    files = {file.name: sha256_of_file(file) for file in sorted(partial.iterdir())}
    written = manifest.model_copy(update={"files": files}).write(partial)
    write_atomically(partial / MARKER, sha256_of_file(written).encode())
    return partial.rename(checkpoint_path(folder, manifest.step))


def committed(folder: Path) -> list[Path]:
    """The committed checkpoints, oldest first."""
    return sorted(path.parent for path in folder.glob(f"step-????????/{MARKER}"))


def discard_uncommitted(folder: Path) -> None:
    """Delete what a killed attempt was writing."""
    for partial in folder.glob("step-*.partial"):
        logger.warning("checkpoint=%s was never finished and is deleted", partial.name)
        shutil.rmtree(partial)
    for checkpoint in folder.glob("step-????????"):
        if not (checkpoint / MARKER).exists():
            shutil.rmtree(checkpoint)  # what a deletion that was cut short has left


def verify(checkpoint: Path) -> CheckpointManifest:
    """The manifest of a checkpoint whose every byte is the one that was written.

    Raises:
        DamagedCheckpointError: it is not.
    """
    listing = checkpoint / CheckpointManifest.file_name
    marker = checkpoint / MARKER
    if not marker.is_file() or not listing.is_file():
        raise _damaged(checkpoint, "it was never committed")
    if hashlib.sha256(listing.read_bytes()).hexdigest() != marker.read_text(errors="replace"):
        raise _damaged(checkpoint, f"{listing.name} was changed")
    manifest = CheckpointManifest.read(checkpoint)
    for name, digest in manifest.files.items():
        if not (checkpoint / name).is_file():
            raise _damaged(checkpoint, f"{name} is missing")
        if sha256_of_file(checkpoint / name) != digest:
            raise _damaged(checkpoint, f"{name} was changed: its SHA-256 is not {digest[:12]}…")
    return manifest


def newest_intact(folder: Path, fingerprint: str) -> tuple[Path, CheckpointManifest] | None:
    """The checkpoint to resume from; damaged ones are set aside with a loud warning.

    Raises:
        PerennialError: the checkpoint belongs to another training.
    """
    for checkpoint in reversed(committed(folder)):
        try:
            manifest = verify(checkpoint)
        except DamagedCheckpointError as error:
            aside = checkpoint.with_suffix(".damaged")
            shutil.rmtree(aside, ignore_errors=True)
            checkpoint.rename(aside)
            logger.warning("%s; kept as %s, falling back to the one before", error, aside.name)
            continue
        if manifest.fingerprint != fingerprint:
            raise PerennialError(
                f"the checkpoint {checkpoint} belongs to another training",
                evidence=f"its fingerprint is {manifest.fingerprint[:16]}, not {fingerprint[:16]}",
                action="never point two trainings at one folder; remove the folder to start anew",
            )
        return checkpoint, manifest
    return None


def choose_kept(
    metrics: Iterable[tuple[int, dict[str, float]]],
    *,
    keep_best: int,
    metric: str,
    direction: Direction,
) -> dict[int, KeptAs]:
    """Step → why it is kept: the best by metric (earlier steps win ties) and the last."""
    measured = dict(metrics)
    sign = 1.0 if direction == "minimize" else -1.0
    scored = sorted(
        (sign * values[metric], step) for step, values in measured.items() if metric in values
    )
    best = {step for _, step in scored[:keep_best]}
    last = max(measured, default=None)
    kept: dict[int, KeptAs] = {}
    for step in sorted(measured):
        as_best: KeptAs = ("best",) if step in best else ()
        as_last: KeptAs = ("last",) if step == last else ()
        if as_best or as_last:
            kept[step] = as_best + as_last
    return kept


def prune(folder: Path, kept: Iterable[int]) -> None:
    """Delete the committed checkpoints of all other steps.

    Called after a commit only, so that there is always at least one to resume from.
    """
    names = {checkpoint_path(folder, step).name for step in kept}
    for checkpoint in committed(folder):
        if checkpoint.name not in names:
            # Without its marker first: a deletion that is cut short leaves no half checkpoint.
            (checkpoint / MARKER).unlink()
            shutil.rmtree(checkpoint)


def _damaged(checkpoint: Path, evidence: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        f"the checkpoint {checkpoint} is damaged",
        evidence=evidence,
        action="check the disk it lies on; training falls back to the checkpoint before",
    )
