"""Identity: fingerprint and folder of a training, and whether an equal one has finished."""

import logging
from pathlib import Path

from pydantic import JsonValue

from perennial.clients.object_store import LocalObjectStore, open_store
from perennial.contracts.environment import Environment
from perennial.contracts.errors import PerennialError
from perennial.contracts.initial_model import InitialModel, Teachers
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import TrainingResult
from perennial.engine.checkpoints.checkpoint_store import open_checkpoint_store
from perennial.engine.checkpoints.folder import DamagedCheckpointError
from perennial.engine.config.training import TrainingSection
from perennial.engine.handover import fetch_result, folder_for
from perennial.engine.job import (
    ShorterTraining,
    TrainingJob,
    training_contract,
    training_fingerprint,
)
from perennial.training_jobs.config import TrainModelConfig

logger = logging.getLogger(__name__)


def training_job(
    settings: TrainModelConfig, snapshot_folder: Path, environment: Environment
) -> TrainingJob:
    """Return the job, in the folder of its fingerprint.

    Initial model and teachers, if any, are those that were handed on with the snapshot.

    If the store is not a folder, checkpoints go to the store; logs and copies of the checkpoints
    are in this machine's cache.

    Raises:
        PerennialError: other teachers were handed on than the contract names.
    """
    snapshot = Snapshot.read(snapshot_folder)
    initial = InitialModel.find(snapshot_folder)
    teachers = _find_teachers(settings.training, snapshot_folder)
    store = open_store(environment.store_uri)
    is_local = isinstance(store, LocalObjectStore)
    root = str(store.root) if isinstance(store, LocalObjectStore) else store.uri

    def contract_of(training: TrainingSection) -> dict[str, JsonValue]:
        code = environment.code_digest
        model = settings.model
        return training_contract(snapshot, model, training, code, initial, teachers=teachers)

    def address_of(fingerprint: str) -> str:
        return f"{root}/training/{fingerprint[:16]}"

    # A training that differs in its length alone, which this one can continue.
    def shorter(training: TrainingSection) -> ShorterTraining:
        known = training_fingerprint(contract_of(training))
        return ShorterTraining(
            steps=training.steps,
            fingerprint=known,
            checkpoints_uri=f"{address_of(known)}/checkpoints",
        )

    contract = contract_of(settings.training)
    fingerprint = training_fingerprint(contract)
    address = address_of(fingerprint)
    return TrainingJob(
        fingerprint=fingerprint,
        contract=contract,
        snapshot=str(snapshot_folder.absolute()),
        model=settings.model,
        training=settings.training,
        initial=initial,
        teachers=teachers,
        num_processes=settings.resources.num_processes,
        folder=str((Path(address) if is_local else folder_for(address)).absolute()),
        store_uri="" if is_local else address,
        extended=tuple(map(shorter, settings.training.extended())),
        common=store.uri,
    )


def _find_teachers(training: TrainingSection, snapshot_folder: Path) -> Teachers | None:
    if training.distillation is None:
        return None
    found, asked = Teachers.find(snapshot_folder), training.distillation.teachers
    if found is None or found.asked != asked:
        raise PerennialError(
            "the teachers of this training were not resolved",
            evidence=f"training.distillation.teachers = {list(asked)}, the step before handed on "
            f"{list(found.asked) if found else 'none'}",
            action="start the run at check_skeleton, which pins them; a study cannot vary them",
        )
    return found


def is_finished(job: TrainingJob) -> bool:
    """Whether an equal training has finished and its checkpoints are still intact."""
    if not fetch_result(job):
        return False
    try:
        for kept in TrainingResult.read(job.root).checkpoints:
            # Those of a shorter training, which this one has extended, are in that one's store.
            store = open_checkpoint_store(kept.uri.rpartition("/")[0])
            # Readers of a checkpoint verify its bytes, so this step need not fetch them.
            look = store.manifest if job.store_uri else store.fetch_verified
            look(kept.step)
    except DamagedCheckpointError as error:
        logger.warning("training fingerprint=%s again: %s", job.fingerprint, error)
        return False
    return True
