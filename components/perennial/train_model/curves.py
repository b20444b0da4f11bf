"""Curves: log the points of a training to the tracking server, live and at its end."""

import json
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self

from perennial.clients.tracking import Tracking
from perennial.contracts.training import EvaluationPoint, StepPoint

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
    for name in dict.fromkeys(name for point in points for name in point.metrics):
        tracking.log_curve(
            f"validation/{name}", [(p.step, p.metrics[name]) for p in points if name in p.metrics]
        )


class LiveCurves:
    """Follows the file to which a training writes its points, in a thread, while it runs.

    All points are sent again at the end; the server drops duplicates. If the server fails in
    between, only the live view is lost, not the training.

    Args:
        file: JSON lines; may not exist yet.
        tracking: The tracking run, once the server has answered.
    """

    def __init__(self, file: Path, tracking: Future[Tracking]) -> None:
        self._file = file
        self._tracking = tracking
        # The points of earlier attempts have been sent.
        self._offset = file.stat().st_size if file.exists() else 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="live-curves", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            lines = self._new_lines()
            if not lines or not self._tracking.done():
                continue
            try:
                self._send(lines)
            except Exception as error:  # anything that the server's client raises
                logger.warning("live curves stopped: %s", error)
                return
            self._offset += sum(map(len, lines))

    def _new_lines(self) -> list[bytes]:
        """Return complete lines only: the last one may still be incomplete."""
        if not self._file.exists():
            return []
        with self._file.open("rb") as stream:
            stream.seek(self._offset)
            return [line for line in stream if line.endswith(b"\n")]

    def _send(self, lines: list[bytes]) -> None:
        tracking = self._tracking.result()
        points = [json.loads(line) for line in lines]
        by_kind = {
            kind: [
                {name: value for name, value in point.items() if name != "kind"}
                for point in points
                if point["kind"] == kind
            ]
            for kind in ("step", "evaluation")
        }
        log_steps(tracking, [StepPoint.model_validate(each) for each in by_kind["step"]])
        log_evaluations(
            tracking, [EvaluationPoint.model_validate(each) for each in by_kind["evaluation"]]
        )
