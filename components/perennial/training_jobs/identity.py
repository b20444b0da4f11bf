"""Identity: fingerprint and folder of a training, and whether an equal one has finished."""

import logging
from pathlib import Path

from perennial.clients.object_store import LocalObjectStore, open_store
from perennial.contracts.environment import Environment
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import TrainingResult
from perennial.engine.checkpoints.checkpoint_store import open_checkpoint_store
from perennial.engine.checkpoints.folder import DamagedCheckpointError
from perennial.engine.handover import fetch_result, folder_for
from perennial.engine.job import TrainingJob, training_contract, training_fingerprint
from perennial.training_jobs.config import TrainModelConfig

logger = logging.getLogger(__name__)


def training_job(
    settings: TrainModelConfig, snapshot_folder: Path, environment: Environment
) -> TrainingJob:
    """Return the job, in the folder of its fingerprint.

    If the store is not a folder, checkpoints go to the store; logs and copies of the checkpoints
    are in this machine's cache.
    """
    resources = settings.resources
    contract = training_contract(
        Snapshot.read(snapshot_folder),
        settings.model,
        settings.training,
        num_processes=resources.num_processes,
        threads_per_process=resources.threads_per_process,
        code_digest=environment.code_digest,
    )
    fingerprint = training_fingerprint(contract)
    store = open_store(environment.store_uri)
    if isinstance(store, LocalObjectStore):
        folder, store_uri = store.root / "training" / fingerprint[:16], ""
    else:
        store_uri = f"{store.uri}/training/{fingerprint[:16]}"
        folder = folder_for(store_uri)
    return TrainingJob(
        fingerprint=fingerprint,
        contract=contract,
        snapshot=str(snapshot_folder.absolute()),
        model=settings.model,
        training=settings.training,
        num_processes=resources.num_processes,
        folder=str(folder.absolute()),
        store_uri=store_uri,
        common=store.uri,
    )


def is_finished(job: TrainingJob) -> bool:
    """Whether an equal training has finished and its checkpoints are still intact."""
    if not fetch_result(job):
        return False
    store = open_checkpoint_store(job.checkpoints_uri)
    # Readers of a checkpoint verify its bytes, so this step need not fetch them from a store.
    look = store.manifest if job.store_uri else store.fetch_verified
    try:
        for kept in TrainingResult.read(job.root).checkpoints:
            look(kept.step)
    except DamagedCheckpointError as error:
        logger.warning("training fingerprint=%s again: %s", job.fingerprint, error)
        return False
    return True
