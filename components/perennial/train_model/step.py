"""Step 4: read the snapshot, train or resume, and record the curves."""

import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from perennial.clients.tracking import RUN_TAG, Tracking, open_tracking, try_to_close_abandoned_runs
from perennial.contracts.artifact import hand_on
from perennial.contracts.environment import Environment
from perennial.contracts.training import TrainingResult
from perennial.steps.decorator import StepResult, pipeline_step
from perennial.train_model.attempts import run_to_end
from perennial.train_model.config import TrainModelConfig
from perennial.train_model.curves import live_curves, log_evaluations, log_steps
from perennial.train_model.identity import is_finished, training_job
from perennial.train_model.report import final_metrics, summarize, training_page
from perennial.training_jobs.launcher import remove_encoded_data
from perennial.training_jobs.on_cluster import open_launcher

logger = logging.getLogger(__name__)


@pipeline_step("train_model", reads=TrainModelConfig, outputs=("training", "report"))
def train_model_step(*, contract: str, snapshot: str, training: str, report: str) -> StepResult:
    """Train the model; reuse or resume an equal training."""
    settings = TrainModelConfig.from_json(contract)
    environment = Environment.read()
    job = training_job(settings, Path(snapshot), environment)
    is_reused = is_finished(job)
    # MLflow takes seconds to answer for the first time; the training need not wait for it.
    with ThreadPoolExecutor(1) as opener:
        tracking = opener.submit(join_tracking, environment, settings.model.name)
        if is_reused:
            logger.info(
                "training=%s was finished before, by an equal run: its result is used again",
                job.fingerprint[:16],
            )
            remove_encoded_data(job)
        else:
            launcher = open_launcher(settings.resources, environment)
            with live_curves(job.logs / "metrics.jsonl", tracking), failure_on_record(tracking):
                run_to_end(job, launcher, settings.resources.max_restarts)
    result = TrainingResult.read(job.root)
    summary = summarize(result, is_reused=is_reused)
    hand_on(Path(training), result, Path(snapshot))
    training_page(result, summary).write(Path(report))
    record(tracking.result(), settings, result)
    return StepResult(metrics=final_metrics(result), summary=summary)


def join_tracking(environment: Environment, model: str) -> Tracking:
    """Open the run's tracking run; on one machine, close those that earlier runs left open.

    Only one run is active in a home at a time, so any other has ended.
    """
    tracking = open_tracking(environment, model)
    if environment.run_folder is not None:
        own = environment.run_id
        try_to_close_abandoned_runs(
            environment, lambda tags: tags[RUN_TAG] != own, f"run {own} was started after it"
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


def record(tracking: Tracking, settings: TrainModelConfig, result: TrainingResult) -> None:
    """Log parameters and curves to the tracking server."""
    tracking.log_params(
        {
            "training.fingerprint": result.fingerprint,
            "training.section": settings.training.to_json(),
            "training.world_size": result.world_size,
            "training.num_parameters": result.num_parameters,
        }
    )
    log_steps(tracking, result.history)
    log_evaluations(tracking, result.evaluations)
