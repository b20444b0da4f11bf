"""Identity: which training is this, where does it live, and did it end before?"""

import logging
from pathlib import Path

from components.clients.environment import Environment
from components.clients.object_store import LocalObjectStore, open_store
from components.contracts.errors import PerennialError
from components.contracts.snapshot import Snapshot
from components.contracts.training import TrainingResult
from components.engine.checkpoints.folder import DamagedCheckpointError, verify
from components.engine.job import TrainingJob, training_fingerprint
from components.train_model.config import TrainModelConfig

logger = logging.getLogger(__name__)


def training_job(
    settings: TrainModelConfig, snapshot_folder: Path, environment: Environment
) -> TrainingJob:
    """The job, in the one folder that belongs to its fingerprint.

    Raises:
        PerennialError: checkpoints cannot be written to the store.
    """
    store = open_store(environment.store_uri)
    if not isinstance(store, LocalObjectStore):
        raise PerennialError(
            f"checkpoints cannot be written to {store.uri}",
            evidence="the training's processes need one folder that all of them can reach",
            action="set PERENNIAL_STORE_URI to a folder, on a cluster to a shared volume",
        )
    resources = settings.resources
    fingerprint = training_fingerprint(
        Snapshot.read(snapshot_folder),
        settings.model,
        settings.training,
        num_processes=resources.num_processes,
        threads_per_process=resources.threads_per_process,
        code_digest=environment.code_digest,
    )
    return TrainingJob(
        fingerprint=fingerprint,
        snapshot=str(snapshot_folder.absolute()),
        model=settings.model,
        training=settings.training,
        num_processes=resources.num_processes,
        folder=str(store.root.absolute() / "training" / fingerprint[:16]),
    )


def is_finished(job: TrainingJob) -> bool:
    """Whether an equal training ended before and its checkpoints are still there, intact."""
    if not (job.root / TrainingResult.file_name).exists():
        return False
    try:
        for kept in TrainingResult.read(job.root).checkpoints:
            verify(Path(kept.uri))
    except DamagedCheckpointError as error:
        logger.warning("fingerprint=%s is trained again: %s", job.fingerprint, error)
        return False
    return True
