"""Step 4: read the snapshot, train or resume, and record the curves."""

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from perennial.clients.object_store import open_store
from perennial.contracts.artifact import hand_on
from perennial.contracts.environment import Environment
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import TrainingResult
from perennial.data.row_groups import index_partitions
from perennial.steps.decorator import StepResult, pipeline_step
from perennial.train_model.record import begin_record, failure_on_record, live_curves, record
from perennial.train_model.report import final_metrics, summarize, training_page
from perennial.training_jobs.attempts import run_to_end
from perennial.training_jobs.config import TrainModelConfig
from perennial.training_jobs.identity import is_finished, training_job
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
        tracking = opener.submit(
            begin_record, environment, settings, contract, Snapshot.read(Path(snapshot))
        )
        if is_reused:
            logger.info(
                "training=%s was finished before: its result is used again, whatever resources "
                "this run asks for; `perennial probe` compares their speed",
                job.fingerprint[:16],
            )
            remove_encoded_data(job)
        else:
            loading = settings.training.loading
            if loading.encode_ahead:
                # Here, because most runs need not wait seconds for PyTorch.
                from perennial.engine.data.preparation import encode_ahead  # noqa: PLC0415

                encode_ahead(job)
            elif loading.mode == "streaming":
                # While no GPU waits for it.
                index_partitions(Snapshot.read(Path(snapshot)), open_store(job.common_uri))
            launcher = open_launcher(settings.resources, environment)
            with live_curves(job.logs / "metrics.jsonl", tracking), failure_on_record(tracking):
                run_to_end(job, launcher, settings.resources.max_restarts)
    result = TrainingResult.read(job.root)
    summary = summarize(result, is_reused=is_reused)
    hand_on(Path(training), result, Path(snapshot))
    training_page(result, summary).write(Path(report))
    record(tracking.result(), result)
    return StepResult(metrics=final_metrics(result), summary=summary)
