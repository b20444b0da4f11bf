"""Record: what the MLflow run of a training holds, from its start on."""

import json
import logging
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from perennial.clients.tracking import RUN_TAG, Tracking, close_abandoned_runs, open_tracking
from perennial.contracts.environment import Environment
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import TrainingResult
from perennial.train_model.curves import log_evaluations, log_steps
from perennial.training_jobs.config import TrainModelConfig, flatten_options

logger = logging.getLogger(__name__)


def begin_record(
    environment: Environment, settings: TrainModelConfig, contract: str, snapshot: Snapshot
) -> Tracking:
    """Open the run's tracking run and log what is trained, how, and on which data."""
    tracking = join_tracking(environment, settings.model.name)
    tracking.log_params(flatten_options(settings))
    tracking.log_text(json.dumps(json.loads(contract), indent=2), "contract.json")
    rows = {split.value: number for split, number in snapshot.split_rows.items()}
    tracking.log_dataset(
        settings.model.name,
        snapshot.digest(),
        uri=snapshot.data.uri,
        profile={"rows": snapshot.rows} | rows,
        context="training",
    )
    return tracking


def join_tracking(environment: Environment, model: str) -> Tracking:
    """Open the run's tracking run; on one machine, close the model's that were left open.

    Only one run of a model is active in a home at a time, so any other has ended.
    """
    tracking = open_tracking(environment, model)
    if environment.run_folder is not None:
        own = environment.run_id
        close_abandoned_runs(
            environment,
            lambda tags: tags[RUN_TAG] != own,
            f"run {own} was started after it",
            experiment=model,
        )
    return tracking


@contextmanager
def failure_on_record(tracking: Future[Tracking]) -> Iterator[None]:
    """Mark the tracking run as failed if the training fails; raise the training's error."""
    try:
        yield
    except Exception:
        try:
            tracking.result().fail()
        except Exception:
            logger.exception("the tracking run cannot be marked as failed")
        raise


def record(tracking: Tracking, result: TrainingResult) -> None:
    """Log what the training turned out to be, and its curves."""
    tracking.log_params(
        {
            "fingerprint": result.fingerprint[:12],
            "world_size": result.world_size,
            "num_parameters": result.num_parameters,
        }
    )
    if result.signals:
        tracking.set_tags({"perennial.signals": ", ".join({s.kind: "" for s in result.signals})})
    log_steps(tracking, result.history)
    log_evaluations(tracking, result.evaluations)
