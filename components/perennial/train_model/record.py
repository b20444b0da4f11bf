"""Record: what the MLflow run of a training holds, with its curves while it runs."""

import json
import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from perennial.clients.tracking import RUN_TAG, Tracking, close_abandoned_runs, open_tracking
from perennial.contracts.environment import Environment
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import EvaluationPoint, MachinePoint, StepPoint, TrainingResult
from perennial.steps.background import running_beside
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

    Only one run of a model is active in a home at a time, so any other of this home has ended. Runs
    of other homes and of clusters, which may record in the same MLflow, have no folder here.
    """
    tracking = open_tracking(environment, model)
    if environment.run_folder is not None:
        own, home = environment.run_id, environment.run_folder.parent
        close_abandoned_runs(
            environment,
            lambda tags: tags[RUN_TAG] != own and (home / tags[RUN_TAG]).is_dir(),
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
        # RunStopped is a SystemExit and passes: to be stopped is no failure of the training.
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
    log_metrics(tracking, "validation", result.evaluations)


POLL_SECONDS = 2.0
STEP_CURVES = tuple(name for name in StepPoint.model_fields if name != "step")


def log_steps(tracking: Tracking, points: Sequence[StepPoint]) -> None:
    """Log every signal of the logging intervals as `train/…`."""
    for name in STEP_CURVES:
        measured = [(point.step, getattr(point, name)) for point in points]
        known = [(step, value) for step, value in measured if value is not None]
        if known:
            tracking.log_curve(f"train/{name}", known)


def log_metrics(
    tracking: Tracking, prefix: str, points: Sequence[EvaluationPoint | MachinePoint]
) -> None:
    """Log every metric of the points; MLflow shows those of `system` as system metrics."""
    for name in dict.fromkeys(name for point in points for name in point.metrics):
        known = [(p.step, p.metrics[name]) for p in points if name in p.metrics]
        tracking.log_curve(f"{prefix}/{name}", known)


@contextmanager
def live_curves(file: Path, tracking: Future[Tracking]) -> Iterator[None]:
    """Follow the file of JSON lines to which a training writes its points, while the block runs.

    The training's points are sent again at the end; the server drops duplicates. If the server
    fails in between, only the live view and the machine's load are lost, not the training.
    """
    # The points of earlier attempts have been sent.
    offset = file.stat().st_size if file.exists() else 0
    with running_beside(partial(_follow, file, offset, tracking), "live-curves"):
        yield


def _follow(file: Path, offset: int, tracking: Future[Tracking], ended: threading.Event) -> None:
    is_last = False
    while not is_last:
        is_last = ended.wait(POLL_SECONDS)
        lines = _read_lines(file, offset)
        # Until MLflow answers, points wait in the file; only at the end are they waited for.
        if not lines or not (is_last or tracking.done()):
            continue
        try:
            _send(tracking.result(), lines)
        except Exception as error:  # anything that the server's client raises
            logger.warning("live curves stopped: %s", error)
            return
        offset += sum(map(len, lines))


def _read_lines(file: Path, offset: int) -> list[bytes]:
    """Return complete lines only: the last one may still be incomplete."""
    if not file.exists():
        return []
    with file.open("rb") as stream:
        stream.seek(offset)
        return [line for line in stream if line.endswith(b"\n")]


def _send(tracking: Tracking, lines: list[bytes]) -> None:
    kinds: dict[str, list[dict[str, object]]] = {"step": [], "evaluation": [], "machine": []}
    for line in lines:
        point = json.loads(line)
        kinds[point.pop("kind")].append(point)
    log_steps(tracking, [StepPoint.model_validate(each) for each in kinds["step"]])
    evaluations = [EvaluationPoint.model_validate(each) for each in kinds["evaluation"]]
    log_metrics(tracking, "validation", evaluations)
    machine = [MachinePoint.model_validate(each) for each in kinds["machine"]]
    log_metrics(tracking, "system", machine)
