"""Checkpoint folder: lists, commits and verifies checkpoints. Imports no torch.

A checkpoint is written into `step-00000100.partial/`, hashed, listed in `checkpoint.json`, marked
by `COMMITTED` (which contains that file's digest) and renamed to `step-00000100/`. Commits are
atomic, and a single flipped bit is detected when it is read.
"""

import hashlib
import logging
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

from pydantic import Field, JsonValue

from perennial.clients.object_store import sha256_of_file
from perennial.contracts.artifact import Artifact, flush_path, write_atomically
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import Section, flattened
from perennial.contracts.training import (
    CollectiveWaits,
    EvaluationPoint,
    StepPoint,
    TrainedPart,
)

MARKER = "COMMITTED"
VERIFYING_THREADS = 8  # digesting releases the interpreter's lock; more would wait for the disk
logger = logging.getLogger(__name__)


class RunningSums(Section):
    """Sums of per-step measurements since the last point that used them."""

    steps: int = 0
    loss: float = 0.0
    gradient_norm: float = 0.0
    clipped: float = 0.0


class SpikeState(Section):
    """State of the detector; saved with every checkpoint."""

    recent: tuple[float, ...] = ()
    """The window of losses, oldest first."""
    suspects: tuple[float, ...] = ()
    """The suspects of the current run, which are not in the window."""
    calm_needed: int = 0
    """Losses without suspicion that must come in a row before the next spike can."""


class Progress(Section):
    """Measurements up to a step, over all attempts."""

    step: int = 0
    history: tuple[StepPoint, ...] = ()
    evaluations: tuple[EvaluationPoint, ...] = ()
    since_log: RunningSums = RunningSums()
    since_evaluation: RunningSums = RunningSums()
    seconds: float = 0.0
    num_resumes: int = 0
    data_offset: int = 0
    """Global batches that were skipped: update s uses batch s + data_offset."""
    num_skipped: int = 0
    """Updates skipped because they were not finite."""
    num_rescaled: int = 0
    """Updates skipped because float16 overflowed; each halved the loss scale."""
    loss_scale: float = 0.0
    """Loss scale of float16; 0 means not used yet."""
    loss_scale_steps: int = 0
    """Updates since the loss scale last changed."""
    gradient_norms: tuple[float, ...] = ()
    """The latest gradient norms, oldest first, for adaptive clipping."""
    num_rewinds: int = 0
    """Returns to a checkpoint because of a jump of the loss."""
    trusted_step: int = 0
    """The checkpoint that the last of them returned to."""
    spikes: SpikeState = SpikeState()
    """State of the spike detector: the recent losses."""
    parts: tuple[TrainedPart, ...] = ()
    """How the work was divided, in order; more than one: the state was resharded."""
    world_sizes: tuple[int, ...] = ()
    """Numbers of processes, in checkpoints of earlier versions, which had no `parts`."""
    collective_waits: tuple[CollectiveWaits, ...] = ()


class CheckpointManifest(Artifact):
    """Everything about a checkpoint except its tensors.

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
    contract: dict[str, JsonValue] = Field(default_factory=dict)
    """The settings whose digest is the fingerprint, to name those in which two trainings differ."""


class DamagedCheckpointError(PerennialError):
    """A checkpoint's bytes differ from those that were written."""


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the folder of one step's checkpoint."""
    return folder / f"step-{step:08}"


def partial_path(folder: Path, step: int) -> Path:
    """Return the folder in which one step's checkpoint is written."""
    return checkpoint_path(folder, step).with_suffix(".partial")


def step_of(checkpoint: Path) -> int:
    """Return the step of a checkpoint's folder."""
    return int(checkpoint.name.removeprefix("step-"))


def commit(folder: Path, manifest: CheckpointManifest) -> Path:
    """Commit the step's partial folder as a checkpoint."""
    seal(folder, manifest)
    return publish(folder, manifest.step)


def seal(folder: Path, manifest: CheckpointManifest) -> CheckpointManifest:
    """Hash the files in the step's partial folder, list them and write the completion marker.

    Digests that `manifest.files` has already are not computed again.
    """
    partial = partial_path(folder, manifest.step)
    here = {file.name for file in partial.iterdir()} - {manifest.file_name, MARKER}
    unknown = {name: sha256_of_file(partial / name) for name in here - manifest.files.keys()}
    files = dict(sorted((manifest.files | unknown).items()))
    sealed = manifest.model_copy(update={"files": files})
    listing = sealed.write(partial)
    write_atomically(partial / MARKER, sha256_of_file(listing).encode())
    # On disk before `publish` renames the folder: after a power failure, a committed checkpoint
    # must not lack a file.
    flush_path(partial)
    return sealed


def publish(folder: Path, step: int) -> Path:
    """Give a sealed checkpoint its final name."""
    target = checkpoint_path(folder, step)
    if target.exists():
        delete(target)  # of an earlier pass over this step
    partial_path(folder, step).rename(target)
    flush_path(folder)
    return target


def committed(folder: Path) -> list[Path]:
    """Return the committed checkpoints, oldest first."""
    found = (marker.parent for marker in folder.glob(f"step-*/{MARKER}"))
    # A quarantined folder keeps its marker, and a partial one is sealed before it is renamed.
    return sorted((path for path in found if not path.suffix), key=step_of)


def discard_uncommitted(folder: Path) -> None:
    """Delete the incomplete checkpoints of a killed attempt."""
    for path in sorted(folder.glob("step-*")):
        if path.suffix == ".partial":
            logger.warning("checkpoint=%s was never finished and is deleted", path.name)
        elif path.suffix or (path / MARKER).exists():
            continue  # the rest was left by an interrupted deletion
        try:
            shutil.rmtree(path)
        except OSError as error:
            logger.warning("checkpoint=%s cannot be deleted: %s", path.name, error)


def delete(checkpoint: Path) -> None:
    """Delete a committed checkpoint.

    Raises:
        OSError: it cannot be deleted.
    """
    # Its marker first: an interrupted deletion leaves nothing that looks committed.
    (checkpoint / MARKER).unlink()
    shutil.rmtree(checkpoint)


def quarantine(checkpoint: Path) -> Path:
    """Move a damaged checkpoint to quarantine, for inspection."""
    aside = checkpoint.with_suffix(".damaged")
    if checkpoint.exists():  # else what lies there is the evidence
        shutil.rmtree(aside, ignore_errors=True)
    return checkpoint.rename(aside)


def verify(checkpoint: Path) -> CheckpointManifest:
    """Verify every byte of a checkpoint and return its manifest.

    Raises:
        DamagedCheckpointError: a byte differs.
    """
    manifest = read_manifest(checkpoint)
    with ThreadPoolExecutor(min(VERIFYING_THREADS, os.cpu_count() or 1)) as pool:
        found = pool.map(lambda name: problem_of(checkpoint / name, manifest), manifest.files)
        for problem in filter(None, found):
            raise damaged(checkpoint, problem)
    return manifest


def read_manifest(checkpoint: Path) -> CheckpointManifest:
    """Return the listing of a committed checkpoint; does not verify the listed files.

    Raises:
        DamagedCheckpointError: the listing differs from the one that was written.
    """
    listing = checkpoint / CheckpointManifest.file_name
    marker = checkpoint / MARKER
    if not marker.is_file() or not listing.is_file():
        raise damaged(checkpoint, "it was never committed")
    if hashlib.sha256(listing.read_bytes()).hexdigest().encode() != marker.read_bytes():
        raise damaged(checkpoint, f"{listing.name} or {MARKER} was changed")
    return CheckpointManifest.read(checkpoint)


def problem_of(file: Path, manifest: CheckpointManifest) -> str:
    """Return the problem of a listed file; empty when it is intact."""
    digest = manifest.files[file.name]
    if not file.is_file():
        return f"{file.name} is missing"
    if sha256_of_file(file) != digest:
        return f"{file.name} was changed: its SHA-256 is not {digest[:12]}…"
    return ""


def damaged(checkpoint: Path | str, evidence: str) -> DamagedCheckpointError:
    """Return the error for a checkpoint that must not be loaded."""
    return DamagedCheckpointError(
        f"the checkpoint {checkpoint} is damaged",
        evidence=evidence,
        action="check the disk it is stored on; training falls back to the previous checkpoint",
    )


SHOWN = 12
ABSENT = "(absent)"


def require_same_training(
    where: str, manifest: CheckpointManifest, fingerprint: str, contract: Mapping[str, JsonValue]
) -> None:
    """Check that a checkpoint belongs to this training.

    Raises:
        PerennialError: it belongs to another training; the error names the settings that differ.
    """
    if manifest.fingerprint == fingerprint:
        return
    found = differences(manifest.contract, contract)
    lines = [f"{key}: {then} in the checkpoint, {now} now" for key, then, now in found[:SHOWN]]
    if len(found) > SHOWN:
        lines.append(f"and {len(found) - SHOWN} more")
    prints = f"its fingerprint is {manifest.fingerprint[:16]}, not {fingerprint[:16]}"
    raise PerennialError(
        f"the checkpoint {where} belongs to another training",
        evidence="\n".join([prints, *lines]),
        action="undo these changes to resume it, or remove its folder to start again; never use "
        "one folder for two trainings",
    )


def differences(
    stored: Mapping[str, JsonValue], current: Mapping[str, JsonValue]
) -> list[tuple[str, str, str]]:
    """Yield dotted key, stored value and current value of each setting that differs."""
    before, now = (
        {key: repr(value) for key, value in flattened(each).items()} for each in (stored, current)
    )
    return [
        (key, before.get(key, ABSENT), now.get(key, ABSENT))
        for key in sorted(before.keys() | now.keys())
        if before.get(key, ABSENT) != now.get(key, ABSENT)
    ]
