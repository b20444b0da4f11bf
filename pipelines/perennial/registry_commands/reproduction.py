"""Reproduction: train a registered version again with the given sources, and compare weights."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from perennial.clients.version_control import DIRTY, commit_of, place_in_repository, top_of
from perennial.contract import Contract
from perennial.contracts.environment import Environment
from perennial.contracts.errors import PerennialError, TrainingFailedError
from perennial.contracts.initial_model import InitialModel
from perennial.contracts.lineage import DIFF_FILE, Lineage
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import Challenger, TrainingResult, describe_parts
from perennial.contracts.user_code import user_code
from perennial.data.dataset import Dataset
from perennial.engine.config.training import TrainingSection
from perennial.engine.export import weights_digest
from perennial.engine.initial_weights import fetch_weights
from perennial.registry.promotion import trace_lineage
from perennial.registry_commands.catalogue import Catalogue, VersionRecord
from perennial.registry_commands.comparison import differences
from perennial.runs import Home, code_digest
from perennial.select_checkpoint.candidates import select_challenger
from perennial.training_jobs.attempts import run_to_end
from perennial.training_jobs.config import TrainModelConfig
from perennial.training_jobs.identity import training_job
from perennial.training_jobs.launcher import LocalLauncher


@dataclass(frozen=True)
class TrainingRecord:
    """Record needed to train a version again."""

    title: str
    contract: Contract
    snapshot: Snapshot
    challenger: Challenger
    lineage: Lineage

    def moved_to(self, uri: str) -> "TrainingRecord":
        """Return the record with another address of the dataset."""
        root, target = self.snapshot.data.uri.rstrip("/"), uri.rstrip("/")
        files = tuple(
            file.model_copy(update={"uri": f"{target}{file.uri.removeprefix(root)}"})
            for file in self.snapshot.files
        )
        data = self.snapshot.data.model_copy(update={"uri": target})
        moved = self.snapshot.model_copy(update={"data": data, "files": files})
        return replace(self, snapshot=moved)


def training_record(catalogue: Catalogue, version_record: VersionRecord) -> TrainingRecord:
    """Return the training record of a version, checked down to the weights.

    Raises:
        PerennialError: something is missing, unreadable, or differs from what was registered.
    """
    with TemporaryDirectory() as scratch:
        folder = catalogue.registry.download(version_record.version, Path(scratch))
        weights_sha256 = weights_digest(folder)
    try:
        contract = Contract.from_json(version_record.contract_text)
    except ValueError:
        contract = None
    snapshot = version_record.snapshot
    challenger, lineage = version_record.challenger, version_record.lineage
    if contract is None or snapshot is None or challenger is None or lineage is None:
        parts = {
            "contract": contract,
            "snapshot": snapshot,
            "challenger": challenger,
            "lineage": lineage,
        }
        absent = [name for name, part in parts.items() if part is None]
        raise PerennialError(
            f"{version_record.title} cannot be reproduced: its record is incomplete",
            evidence=f"it lacks a readable {' and '.join(absent)}",
            action="it was registered by other means, or by another version of Perennial: install "
            "that one (`perennial explain` names its commit)",
        )
    # As recorded at the registration, and of what was read just now.
    digests = {
        "contract.json": (
            lineage.contract_digest,
            sha256(version_record.contract_text).hexdigest(),
        ),
        "snapshot.json": (lineage.snapshot_digest, snapshot.digest()),
        "weights": (challenger.weights_sha256, weights_sha256),
    }
    altered = [
        f"{name}: {then or 'none'} → {now or 'none'}"
        for name, (then, now) in digests.items()
        if then != now
    ]
    if altered:
        raise PerennialError(
            f"{version_record.title} differs from what was registered",
            evidence="SHA-256 of " + "; ".join(altered),
            action=f"put the original back: the files lie in {version_record.version.source}",
        )
    return TrainingRecord(version_record.title, contract, snapshot, challenger, lineage)


CAUSES = ("code_digest", "packages", "python", "platform", "image_digest")
"""Fields of the lineage that can change weights although contract, data and seed are equal.

Not the commit: it also moves when nothing of the code did."""


@dataclass(frozen=True)
class Reproduction:
    """A version and its second training.

    Attributes:
        causes: Differences between the original training and this one; empty when none is recorded.
    """

    registered: Challenger
    again: Challenger
    causes: tuple[str, ...]

    @property
    def is_identical(self) -> bool:
        """Whether every weight has the same bits."""
        return self.registered.weights_sha256 == self.again.weights_sha256

    def lines(self) -> Iterator[str]:
        """Yield the result for people."""
        sha = self.registered.weights_sha256
        if self.is_identical:
            yield f"identical: the weights have SHA-256 {sha} again"
        else:
            yield "different weights"
            yield f"  SHA-256: {sha} → {self.again.weights_sha256}"
            for name in ("chosen_step", "chosen_averaged", "chosen_members"):
                then, now = getattr(self.registered, name), getattr(self.again, name)
                if then != now:
                    yield f"  {name}: {then} → {now}"
        yield "differences between the original training and this one:"
        yield from (f"  {cause}" for cause in self.causes or ("nothing that is recorded",))


def find_code(record: TrainingRecord, working_tree: Path) -> Path:
    """Return the folder of the working tree that has the task's sources.

    That is the folder that trained the version if it is unchanged; else its place in the
    repository, or the working tree itself.
    """
    top, place = top_of(working_tree), record.lineage.code_place
    folders = [top / place] if top is not None and place and (top / place).is_dir() else []
    folders.append(working_tree)
    wanted = record.lineage.code_digest
    unchanged = (each for each in folders if code_digest(record.contract, [each]) == wanted)
    return next(unchanged, folders[0])


def reproduce(record: TrainingRecord, code_folder: Path, *, anyway: bool) -> Reproduction:
    """Train and select again in a home that is thrown away, on exactly the original files.

    The task's module lies in `code_folder`: no code of the version itself is executed. `anyway`
    trains even if code, packages or machine are known to differ.

    Raises:
        BadDataError: a data file is gone or has changed.
        DamagedModelError: a file of the weights that it started or learned from is gone or altered.
        TrainingFailedError: the training failed; its logs are kept.
        PerennialError: something differs, and `anyway` is false.
    """
    Dataset(record.snapshot).fetch_all()  # before anything is trained
    for pinned in _pinned_models(record.challenger):
        for digest in pinned.origin.files.values():
            fetch_weights(pinned.store_uri, digest)
    with _scratch_home() as home:
        environment = Environment(
            # An empty one: in the real store, the finished training would be found and reused.
            store_uri=str(home.path / "store"),
            tracking_uri="",
            run_id="reproduction",
            code_digest=code_digest(record.contract, [code_folder]),
            commit=commit_of(code_folder),
            code_place=place_in_repository(code_folder),
        )
        causes = _causes(record, environment)
        if causes and not anyway:
            raise _known_to_differ(record, causes)
        with user_code("the reproduction"):
            again = _train(home.path, record, environment)
    return Reproduction(record.challenger, again, tuple(causes))


def _pinned_models(challenger: Challenger) -> tuple[InitialModel, ...]:
    """Return the stored models that the training starts with, learns from or may include."""
    initial = (challenger.initial,) if challenger.initial else ()
    groups = (each for each in (challenger.teachers, challenger.champions) if each)
    return (*initial, *(member for group in groups for member in group.members))


@contextmanager
def _scratch_home() -> Iterator[Home]:
    """Delete the home at the end, unless the training failed: its error names logs in there."""
    with ExitStack() as stack:
        folder = Path(mkdtemp(prefix="perennial-reproduction-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            yield Home(folder)
        except TrainingFailedError:
            stack.pop_all()
            raise


def _train(folder: Path, record: TrainingRecord, environment: Environment) -> Challenger:
    contract, snapshot, challenger = record.contract, folder / "snapshot", folder / "challenger"
    record.snapshot.write(snapshot)
    for pinned in (record.challenger.initial, record.challenger.teachers):
        if pinned is not None:  # the weights are still in their store
            pinned.write(snapshot)
    settings = TrainModelConfig(
        model=contract.model, training=as_trained(record), resources=contract.resources
    )
    job = training_job(settings, snapshot, environment)
    # Wherever it was trained: pods of a cluster could not read a folder of this machine.
    launcher = LocalLauncher(settings.resources.threads_per_process)
    run_to_end(job, launcher, settings.resources.max_restarts)
    training = folder / "training"
    TrainingResult.read(job.root).write(training)
    if record.challenger.champions is not None:
        record.challenger.champions.write(training)
    select_challenger(
        contract.selection,
        snapshot,
        training,
        challenger,
        page=folder / "selection.html",
        ensemble=contract.model.ensemble,
    )
    return Challenger.read(challenger)


def as_trained(record: TrainingRecord) -> TrainingSection:
    """Return the contract's training with the passes that it had, which memory may have halved."""
    section, parts = record.contract.training, record.lineage.parts
    if len(parts) != 1:
        return section
    return section.model_copy(update={"micro_batch_size": parts[0].micro_batch_size})


def _causes(record: TrainingRecord, place: Environment) -> list[str]:
    """Return the differences that are known before anything is trained."""
    now = trace_lineage(
        place,
        contract=record.contract.to_json(),
        trigger="{}",
        snapshot_digest=record.snapshot.digest(),
        tracking_run_id="",
        parent_version="",
    )
    before, after = (
        one.model_dump(mode="json", include=set(CAUSES)) for one in (record.lineage, now)
    )
    causes = [line for line in differences(before, after) if line != "the same"]
    parts, resources = record.lineage.parts, record.contract.resources
    here = resources.num_processes, resources.threads_per_process
    if len(parts) > 1 or any((part.processes, part.threads) != here for part in parts):
        causes.append(f"processes: {describe_parts(parts)} → {here[0]} of {here[1]} threads")
    return causes


def _known_to_differ(record: TrainingRecord, causes: list[str]) -> PerennialError:
    commit = record.lineage.commit
    sources = f"`git worktree add FOLDER {commit.removesuffix(DIRTY)}`" if commit else "a copy"
    if commit.endswith(DIRTY):
        sources += f" with the version's {DIFF_FILE}, which you should read before you apply it"
    return PerennialError(
        f"{record.title} would be trained differently; nothing has been trained",
        evidence="\n            ".join(causes),
        action=f"train where these are equal; for the original sources, {sources}, and name the "
        "task's folder there with --code; --anyway trains here all the same and compares",
    )
