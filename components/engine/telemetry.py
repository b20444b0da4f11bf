"""Telemetry: the signals of stability and speed, without a synchronisation off the logging step."""

import logging
import time

import torch
from torch import Tensor

from components.clients.journal import Journal
from components.contracts.errors import TrainingFailedError
from components.contracts.training import EvaluationPoint, StepPoint
from components.engine.checkpoints.folder import Progress, RunningSums
from components.engine.config import TrainingSection
from components.engine.distributed import World

PROGRESS_SECONDS = 0.5  # between two events of the journal: people read no faster
logger = logging.getLogger(__name__)


class Telemetry:
    """What has been measured, over all attempts; every rank measures, the first one speaks.

    Args:
        training: Intervals and budget.
        world: This rank among all.
        progress: Where an earlier attempt got to.
    """

    def __init__(self, training: TrainingSection, world: World, progress: Progress) -> None:
        self._training = training
        self._is_speaker = world.is_first
        self._journal = Journal.of_this_process()
        self._before = progress
        self._history = list(progress.history)
        self._evaluations = list(progress.evaluations)
        # Sums of steps, losses and gradient norms, on the device: reading them is a sync.
        self._since_log = _tensor(progress.since_log, world.device)
        self._since_evaluation = _tensor(progress.since_evaluation, world.device)
        self._interval_start = self._start = time.monotonic()
        self._interval_wait = 0.0
        self._interval_steps = 0
        self._last_event = 0.0

    def waited(self, seconds: float) -> None:
        """Count time spent waiting for a batch."""
        self._interval_wait += seconds

    def update(self, measured: Tensor) -> None:
        """Count one update: `[1, loss, gradient norm]`, on the device."""
        self._since_log += measured
        self._since_evaluation += measured
        self._interval_steps += 1

    def log(self, step: int, learning_rate: float) -> None:
        """Make a point of the interval that ends here, if an update was applied in it."""
        steps, loss, norm = self._since_log.tolist()
        if not steps:
            return
        seconds = time.monotonic() - self._interval_start
        point = StepPoint(
            step=step, loss=loss / steps, learning_rate=learning_rate,
            gradient_norm=norm / steps,
            examples_per_second=self._interval_steps * self._training.global_batch_size / seconds,
            data_wait_share=self._interval_wait / seconds,
        )  # fmt: skip
        self._history.append(point)
        self._since_log.zero_()
        self.restart_clock()
        if self._is_speaker:
            logger.info(_line(point))
            self._tell(point)

    def evaluated(self, step: int, metrics: dict[str, float]) -> None:
        """Make a point of an evaluation.

        Raises:
            TrainingFailedError: no update was ever applied.
        """
        steps, loss, _ = self._since_evaluation.tolist()
        if steps:
            train_loss = loss / steps
        elif self._evaluations:
            train_loss = self._evaluations[-1].train_loss
        else:
            raise TrainingFailedError(
                f"not one of the first {step} updates was applied",
                evidence="all gradients were left out because they were not finite",
                action="train in fp32 or bf16, or lower the learning rate",
            )
        self._evaluations.append(EvaluationPoint(step=step, train_loss=train_loss, metrics=metrics))
        self._since_evaluation.zero_()
        if self._is_speaker:
            values = " ".join(f"{name}={value:.6g}" for name, value in metrics.items())
            logger.info("evaluated step=%d train_loss=%.6g %s", step, train_loss, values)

    def restart_clock(self) -> None:
        """Begin an interval; what lies before it (an evaluation, a checkpoint) is not counted."""
        self._interval_start = time.monotonic()
        self._interval_wait = 0.0
        self._interval_steps = 0

    def progress(self, step: int) -> Progress:
        """All of it, for a checkpoint and for the result."""
        return Progress(
            step=step,
            history=tuple(self._history),
            evaluations=tuple(self._evaluations),
            since_log=_sums(self._since_log),
            since_evaluation=_sums(self._since_evaluation),
            seconds=self._before.seconds + time.monotonic() - self._start,
            num_resumes=self._before.num_resumes,
        )

    def _tell(self, point: StepPoint) -> None:
        done, total = point.step, self._training.steps
        now = time.monotonic()
        if now - self._last_event < PROGRESS_SECONDS and done < total:
            return
        self._last_event = now
        left = (total - done) * self._training.global_batch_size
        self._journal.append(
            "progress", step="train_model", done=done, total=total, loss=point.loss,
            examples_per_second=point.examples_per_second,
            eta_seconds=left / point.examples_per_second, gradient_norm=point.gradient_norm,
        )  # fmt: skip


def _line(point: StepPoint) -> str:
    return (
        f"step={point.step} loss={point.loss:.6g} lr={point.learning_rate:.3g} "
        f"grad_norm={point.gradient_norm:.4g} "
        f"examples_per_second={point.examples_per_second:.0f} "
        f"data_wait={point.data_wait_share:.1%}"
    )


def _tensor(sums: RunningSums, device: torch.device) -> Tensor:
    values = [float(sums.steps), sums.loss, sums.gradient_norm]
    return torch.tensor(values, dtype=torch.float64, device=device)


def _sums(tensor: Tensor) -> RunningSums:
    steps, loss, norm = tensor.tolist()
    return RunningSums(steps=int(steps), loss=loss, gradient_norm=norm)
