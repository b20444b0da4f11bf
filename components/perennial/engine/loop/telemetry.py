"""Telemetry: the signals of stability and speed, without a synchronisation off the logging step."""

import logging
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from perennial.contracts.section import Section, canonical_json
from perennial.contracts.training import EvaluationPoint, MachinePoint, Signal, StepPoint
from perennial.engine.checkpoints.folder import Progress, RunningSums
from perennial.engine.config.training import TrainingSection
from perennial.engine.profiling.flops import peak_flops_of
from perennial.engine.profiling.profiler import Profiler
from perennial.engine.resilience.signals import SignalWatch
from perennial.engine.resilience.stragglers import StragglerProbe
from perennial.engine.resilience.watchdog import Watchdog
from perennial.engine.world.distributed import Scalar, World, read
from perennial.steps.journal import Journal

PROGRESS_SECONDS = 0.5  # between two events of the journal
# Between two measurements of the machine's load: the system's counters take longer to read than a
# small model takes for an update.
LOAD_SECONDS = 1.0
logger = logging.getLogger(__name__)


class Telemetry:
    """Measurements over all attempts; every rank measures, the first one logs.

    Args:
        file: One JSON line per point, as it happened; a resumed attempt repeats the points after
            its checkpoint.
    """

    def __init__(
        self,
        training: TrainingSection,
        world: World,
        progress: Progress,
        file: Path,
        units: "SpeedUnits",
    ) -> None:
        self._training = training
        self._is_speaker = world.is_first
        self._journal = Journal.of_this_process()
        self._file = file
        self._device = world.device
        self._units = units
        self._device_load = DeviceLoad(world.device)
        self._peak_flops = peak_flops_of(training, world)
        self.seconds_waited = 0.0
        """Return the seconds spent waiting for batches, in this attempt."""
        self._before = progress
        self._watch = SignalWatch.of(progress.history, progress.evaluations)
        # Not yet in the sums: reading them is a sync.
        self._unread: list[tuple[Scalar, Scalar]] = []
        self._losses: list[float] = []
        self._since_log = progress.since_log
        self._since_evaluation = progress.since_evaluation
        self._interval_start = self._start = time.monotonic()
        self._interval_wait = 0.0
        self._interval_steps = 0
        self._last_event = self._last_load = float("-inf")
        self._learning_rate = 0.0

    def waited(self, seconds: float) -> None:
        """Count an update's batch, and the time spent waiting for it."""
        self._interval_steps += 1
        self._interval_wait += seconds
        self.seconds_waited += seconds

    def update(self, norm: Scalar, clipped: Scalar, learning_rate: float) -> None:
        """Count an applied update, without reading it."""
        self._learning_rate = learning_rate
        self._unread.append((norm, clipped))

    def add_losses(self, losses: Sequence[float]) -> None:
        """Add the losses of applied updates; all of them are known before a point is recorded."""
        self._losses += losses

    def log(self, step: int, update_ratio: float) -> None:
        """Record a point for the interval that ends here, if an update was applied in it."""
        # First, because reading waits for a GPU: the clock below then covers all of its work.
        self._read()
        sums = self._since_log
        if not sums.steps:
            return
        seconds = time.monotonic() - self._interval_start
        examples_per_second = self._interval_steps * self._training.global_batch_size / seconds
        flops, tokens = self._units.per_second(examples_per_second)
        point = StepPoint(
            step=step,
            loss=sums.loss / sums.steps,
            learning_rate=self._learning_rate,
            gradient_norm=sums.gradient_norm / sums.steps,
            clipped_share=sums.clipped / sums.steps,
            examples_per_second=examples_per_second,
            tokens_per_second=tokens,
            data_wait_share=self._interval_wait / seconds,
            update_ratio=update_ratio,
            memory_bytes=peak_memory(self._device),
            flops_per_second=flops,
            utilization=flops / self._peak_flops if flops and self._peak_flops else None,
            device_busy=self._device_load.busy(),
        )
        begun = self._watch.log(point)
        self._since_log = RunningSums()
        self.restart_clock()
        if self._is_speaker:
            _warn(begun)
            logger.info(_line(point))
            self._write("step", point)
            self._measure_machine(point)
            self._tell(point)

    @property
    def signals(self) -> tuple[Signal, ...]:
        """Return the episodes that the curves have shown."""
        return self._watch.episodes

    def evaluated(
        self, step: int, metrics: dict[str, float], watched: tuple[float, ...] = ()
    ) -> None:
        """Record a point for an evaluation, with the predictions for the watched examples."""
        self._read()
        sums = self._since_evaluation
        train_loss = sums.loss / sums.steps if sums.steps else None
        point = EvaluationPoint(step=step, train_loss=train_loss, metrics=metrics, watched=watched)
        begun = self._watch.evaluate(point)
        self._since_evaluation = RunningSums()
        if self._is_speaker:
            _warn(begun)
            values = " ".join(f"{name}={value:.6g}" for name, value in metrics.items())
            self._write("evaluation", point)
            shown = "none" if train_loss is None else f"{train_loss:.6g}"
            logger.info("evaluated step=%d train_loss=%s %s", step, shown, values)

    def restart_clock(self) -> None:
        """Begin an interval; what lies before it (an evaluation, a checkpoint) is not counted."""
        self._interval_start = time.monotonic()
        self._interval_wait = 0.0
        self._interval_steps = 0

    def rewind(self, progress: Progress) -> None:
        """Discard measurements after a checkpoint, except the elapsed time."""
        self._before = progress.model_copy(
            update={"seconds": self._before.seconds, "num_resumes": self._before.num_resumes}
        )
        self._watch = SignalWatch.of(progress.history, progress.evaluations)
        self._unread.clear()
        self._losses.clear()
        self._since_log = progress.since_log
        self._since_evaluation = progress.since_evaluation
        self.restart_clock()

    def progress(self, step: int) -> Progress:
        """Return all measurements, for a checkpoint and for the result."""
        self._read()
        return Progress(
            step=step,
            history=tuple(self._watch.curve.points),
            evaluations=tuple(self._watch.evaluations),
            since_log=self._since_log,
            since_evaluation=self._since_evaluation,
            seconds=self._before.seconds + time.monotonic() - self._start,
            num_resumes=self._before.num_resumes,
        )

    def _read(self) -> None:
        """Add the measurements since the last call, update by update."""
        if not self._unread:
            return
        norms, clipped = (read(column) for column in zip(*self._unread, strict=True))
        self._since_log = _added(self._since_log, self._losses, norms, clipped)
        self._since_evaluation = _added(self._since_evaluation, self._losses, norms, clipped)
        self._unread.clear()
        self._losses.clear()

    def _write(self, kind: str, point: Section) -> None:
        with self._file.open("a") as stream:
            stream.write(canonical_json({"kind": kind, **point.model_dump(mode="json")}) + "\n")

    def _measure_machine(self, point: StepPoint) -> None:
        now = time.monotonic()
        if now - self._last_load < LOAD_SECONDS:
            return
        self._last_load = now
        load = machine_load(self._device, point.device_busy)
        self._write("machine", MachinePoint(step=point.step, metrics=load))

    def _tell(self, point: StepPoint) -> None:
        done, total = point.step, self._training.steps
        now = time.monotonic()
        if now - self._last_event < PROGRESS_SECONDS and done < total:
            return
        self._last_event = now
        left = (total - done) * self._training.global_batch_size
        self._journal.append(
            "progress",
            step="train_model",
            done=done,
            total=total,
            loss=point.loss,
            examples_per_second=point.examples_per_second,
            eta_seconds=left / point.examples_per_second,
            gradient_norm=point.gradient_norm,
        )


@dataclass(frozen=True)
class SpeedUnits:
    """What an example consists of; None where it cannot be counted.

    Attributes:
        flops: Arithmetic of its forward and backward pass.
        tokens: Positions of its sequences, padding included.
    """

    flops: float | None
    tokens: int | None

    def per_second(self, examples: float) -> tuple[float | None, float | None]:
        """Return both for so many examples per second."""
        return self.flops and self.flops * examples, self.tokens and self.tokens * examples


class DeviceLoad:
    """How busy a GPU is, as its driver reports it; nothing for a CPU.

    The driver counts the moments, of its last sixth of a second to second, in which any kernel ran.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_known = device.type == "cuda"

    def busy(self) -> float | None:
        """Return the share of the last moments in which it computed; None where it is unknown."""
        if not self._is_known:
            return None
        try:
            return torch.cuda.utilization(self._device) / 100.0
        except Exception as error:  # NVML has errors of its own; a part of a GPU is not measured
            self._is_known = False
            logger.info("device_busy=unknown reason=%s: %s", type(error).__name__, error)
            return None


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes: of the device (GPU) or of this process (CPU)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts kilobytes


def machine_load(device: torch.device, busy: float | None = None) -> dict[str, float]:
    """Return the load of this machine: processors since the last call, and memory now.

    The names are those of MLflow's system metrics; a megabyte has 1,000,000 bytes there. `busy` is
    the share of the last moments in which the GPU computed.
    """
    memory = psutil.virtual_memory()
    load = {
        "cpu_utilization_percentage": psutil.cpu_percent(),
        "system_memory_usage_megabytes": memory.used / 1e6,
        "system_memory_usage_percentage": memory.percent,
    }
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        name = f"gpu_{device.index or 0}"
        load |= {
            f"{name}_memory_usage_megabytes": (total - free) / 1e6,
            f"{name}_memory_usage_percentage": 100.0 * (total - free) / total,
        }
        if busy is not None:
            load[f"{name}_utilization_percentage"] = 100.0 * busy
    return load


def _warn(begun: Sequence[Signal]) -> None:
    for signal in begun:
        logger.warning("step=%d %s: %s", signal.from_step, signal.evidence, signal.remedy)


def _line(point: StepPoint) -> str:
    return (
        f"step={point.step} loss={point.loss:.6g} lr={point.learning_rate:.3g} "
        f"grad_norm={point.gradient_norm:.4g} clipped={point.clipped_share:.0%} "
        f"examples_per_second={point.examples_per_second:.0f} "
        + (f"tokens_per_second={point.tokens_per_second:.0f} " if point.tokens_per_second else "")
        + f"data_wait={point.data_wait_share:.1%} update_ratio={point.update_ratio:.2g}"
        + (f" mfu={point.utilization:.1%}" if point.utilization is not None else "")
        + (f" device_busy={point.device_busy:.0%}" if point.device_busy is not None else "")
    )


def _added(
    sums: RunningSums, losses: Sequence[float], norms: Sequence[float], clipped: Sequence[float]
) -> RunningSums:
    # One after the other, so that the sums do not depend on when they were read.
    loss, norm, num_clipped = sums.loss, sums.gradient_norm, sums.clipped
    for one_loss, one_norm, was_clipped in zip(losses, norms, clipped, strict=True):
        loss += one_loss
        norm += one_norm
        num_clipped += was_clipped
    return RunningSums(
        steps=sums.steps + len(losses), loss=loss, gradient_norm=norm, clipped=num_clipped
    )


@dataclass(frozen=True)
class Instruments:
    """None of them changes what is computed."""

    watchdog: Watchdog
    profiler: Profiler
    stragglers: StragglerProbe

    def before(self, step: int) -> None:
        """Note that update `step`, counted from 1, begins."""
        self.watchdog.begin("update", step - 1)
        self.profiler.before(step)
        self.stragglers.before(step)

    def after(self, step: int, *, is_interrupted: bool) -> None:
        """Note that it has ended; what an evaluation interrupts is not traced any further."""
        self.stragglers.after(step)
        self.profiler.after(step, is_interrupted=is_interrupted)
