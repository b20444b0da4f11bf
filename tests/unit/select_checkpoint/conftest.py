"""The models and the MLflow database of `tests/support/small_models.py`, and trainings left on disk."""

import warnings

import pytest
import torch.distributed.checkpoint as dcp

from perennial.contracts.training import CheckpointRecord, TrainingResult
from perennial.engine.checkpoints.folder import (
    CheckpointManifest,
    Progress,
    commit,
    partial_path,
)
from s3_server import bucket, s3_endpoint
from small_models import environment


@pytest.fixture
def leave_training(tmp_path):
    """Leaves `checkpoints` and `training` behind, as a training would.

    Of each step come the weights and, or None, their moving average.
    """

    def write(path, task, states, evaluations=()):
        records = []
        for step, (weights, averages) in states.items():
            state = {"model": weights} | ({"averaged": averages} if averages else {})
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                folder = partial_path(tmp_path / "checkpoints", step)
                dcp.save(state, checkpoint_id=folder, no_dist=True)
            manifest = CheckpointManifest(
                fingerprint="f", step=step, metrics={}, files={}, progress=Progress(step=step)
            )
            uri = str(commit(tmp_path / "checkpoints", manifest))
            records.append(CheckpointRecord(step=step, uri=uri, metrics={}, kept_as=("best",)))
        TrainingResult(
            fingerprint="f", task=path, options=task.options.model_dump(mode="json"),
            columns=task.columns, task_state=task.state(), steps=max(states), world_size=2,
            strategy="ddp", num_parameters=3, history=(), evaluations=evaluations,
            checkpoints=tuple(records), seconds=1.0, num_resumes=0,
        ).write(tmp_path / "training")  # fmt: skip
        return tmp_path / "training"

    return write
