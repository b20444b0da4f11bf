"""Curves: log the points of a training to the tracking server, live and at its end."""

import json
import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from perennial.clients.tracking import Tracking
from perennial.contracts.training import EvaluationPoint, MachinePoint, StepPoint

POLL_SECONDS = 2.0
STEP_CURVES = tuple(name for name in StepPoint.model_fields if name != "step")
logger = logging.getLogger(__name__)


def log_steps(tracking: Tracking, points: Sequence[StepPoint]) -> None:
    """Log every signal of the logging intervals as `train/…`."""
    for name in STEP_CURVES:
        measured = [(point.step, getattr(point, name)) for point in points]
        known = [(step, value) for step, value in measured if value is not None]
        if known:
            tracking.log_curve(f"train/{name}", known)


def log_evaluations(tracking: Tracking, points: Sequence[EvaluationPoint]) -> None:
    """Log every metric of the evaluations as `validation/…`."""
    _log_by_name(tracking, "validation", points)


def log_machine(tracking: Tracking, points: Sequence[MachinePoint]) -> None:
    """Log the machine's load as `system/…`, which MLflow shows as system metrics."""
    _log_by_name(tracking, "system", points)


def _log_by_name(
    tracking: Tracking, prefix: str, points: Sequence[EvaluationPoint | MachinePoint]
) -> None:
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
    ended = threading.Event()
    thread = threading.Thread(
        target=_follow, args=(file, offset, tracking, ended), name="live-curves", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _follow(file: Path, offset: int, tracking: Future[Tracking], ended: threading.Event) -> None:
    is_last = False
    while not is_last:
        is_last = ended.wait(POLL_SECONDS)
        lines = _read_lines(file, offset)
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
    log_evaluations(tracking, [EvaluationPoint.model_validate(e) for e in kinds["evaluation"]])
    log_machine(tracking, [MachinePoint.model_validate(each) for each in kinds["machine"]])
