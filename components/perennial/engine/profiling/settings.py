"""Settings: which of a contract's options are fastest at equal quality on this machine."""

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev

import torch
from pydantic import JsonValue, ValidationError

from perennial.contracts.errors import PerennialError
from perennial.contracts.section import canonical_json, with_values
from perennial.engine.config.training import TrainingSection
from perennial.engine.data.batching import BatchPlan
from perennial.engine.optimization.optimizer import follow_schedule
from perennial.engine.precision import TF32_CAPABILITY
from perennial.engine.profiling.probe import Subject, Update

Changes = Mapping[str, JsonValue]
"""Option of the contract by its dotted name → value."""
RATE = "training.optimizer.learning_rate"
WARMUP_UPDATES = 2
ROUNDS = 5
SEEDS = 3
SECONDS = 0.2
"""How long a setting is measured in a round, at least three updates."""
LEARNING_UPDATES = 200
# The mean over this last share of the updates is the loss that is reached.
REACHED_SHARE = 0.25
# Of the best throughput: beyond it a batch costs memory, and fewer updates per epoch, for nothing.
KNEE_SHARE = 0.9


@dataclass(frozen=True)
class SettingPoint:
    """The speed and the loss of a training with some options changed.

    Attributes:
        changes: What differs from the contract; empty for the contract's own settings.
        rounds: Seconds of an update, the median of each round.
        losses: Training loss reached after the same number of updates, one per seed; empty where
            updates of other sizes cannot be compared.
        memory_bytes: Peak on a GPU; 0 on a CPU, where the process's peak is not informative.
    """

    changes: Changes
    rows: int = 0
    rounds: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    memory_bytes: int = 0
    failure: str = ""

    @property
    def seconds(self) -> float:
        """Seconds of an update: the median of the rounds."""
        return median(self.rounds)

    @property
    def throughput(self) -> float:
        """Examples per second, by the median of the rounds."""
        return self.rows / self.seconds

    @property
    def throughputs(self) -> tuple[float, float]:
        """Spread of the throughput: slowest and fastest round, each but for one outlier."""
        outliers = int(len(self.rounds) > 3)
        kept = sorted(self.rounds)[outliers : len(self.rounds) - outliers]
        return self.rows / kept[-1], self.rows / kept[0]

    @property
    def loss(self) -> float:
        """Mean of the losses reached."""
        return fmean(self.losses)

    def is_faster(self, other: "SettingPoint") -> bool:
        """Whether all rounds but the slowest beat all of the other's but its fastest."""
        return sorted(self.rounds)[-2] < sorted(other.rounds)[1]

    def is_as_good(self, other: "SettingPoint") -> bool:
        """Whether its loss is higher by at most half of the deviation between the other's seeds.

        The losses are of the same batches, so that little of that deviation is in the difference.
        """
        return self.loss - other.loss <= 0.5 * stdev(other.losses)

    def is_better(self, own: "SettingPoint") -> bool:
        """Whether it is faster at equal quality, or reaches a lower loss and is not slower.

        A learning rate alone changes no speed: what differs then is the machine's other work.
        """
        if self.failure or not self.is_as_good(own):
            return False
        is_lower = not own.is_as_good(self)
        if self.changes.keys() == {RATE}:
            return is_lower
        return self.is_faster(own) or (is_lower and not own.is_faster(self))


def candidates(subject: Subject, parts: Sequence[str]) -> Iterator[Changes]:
    """Yield single changes of some parts that may be faster on this device."""
    training, device = subject.training, subject.device
    is_gpu = device.type == "cuda"
    if "precision" in parts:
        types = ("fp32", "bf16", "fp16") if is_gpu else ("fp32", "bf16")
        yield from ({"training.precision": name} for name in types if name != training.precision)
        if is_gpu and torch.cuda.get_device_capability(device) >= TF32_CAPABILITY:
            yield {"training.allow_tf32": not training.allow_tf32}
    if "compile" in parts:
        yield {"training.compile": not training.compile}
    if "loading" in parts:
        own = training.loading.workers
        yield from ({"training.loading.workers": n} for n in (1, 2, 4) if n != own)


def compare_settings(subject: Subject, wanted: Sequence[Changes]) -> list[SettingPoint]:
    """Measure the contract's own settings, single changes, and the better ones together.

    Speed is measured in rounds, which time all settings in turn, so that whatever slows the machine
    down for a while does not look like an effect of a setting. Quality is the loss reached after
    the first updates of the contract's training, with the same initial weights and batches for all
    settings, over a few seeds.

    Returns:
        The contract's own settings, then one point per change, then, if several changes are better,
        all of them together.
    """
    found = measure(subject, [{}, *wanted])
    own = require_own_settings(found[0])
    together = combined([each for each in found[1:] if each.is_better(own)])
    if len(together) > 1:
        found += measure(subject, [{}, together])[1:]
    return found


def require_own_settings(own: SettingPoint) -> SettingPoint:
    """Return the point of the contract's own settings.

    Raises:
        PerennialError: they cannot be measured.
    """
    if own.failure:
        raise PerennialError(
            "the contract's own settings cannot be measured on this machine",
            evidence=own.failure,
            action="change them, or probe on the machine that trains",
        )
    return own


def best_of(points: Sequence[SettingPoint]) -> Changes:
    """Return the changes to take: the fastest better point, the first being the contract's own."""
    own, *others = points
    better = [each for each in others if each.is_better(own)]
    # Together, they are measured last: of equally fast points, the one with most changes.
    return min(better, key=lambda each: (each.seconds, -len(each.changes)), default=own).changes


def combined(useful: Sequence[SettingPoint]) -> Changes:
    """Return all changes together; of two values of one option, the faster one's."""
    slowest_first = sorted(useful, key=lambda point: -point.seconds)
    return {name: value for point in slowest_first for name, value in point.changes.items()}


def measure(
    subject: Subject, wanted: Sequence[Changes], *, learns: bool = True
) -> list[SettingPoint]:
    """Return the points of these changes, in their order; without their losses if asked for."""
    points = [_checked(subject, changes) for changes in wanted]
    points = in_rounds(points, lambda point, _: _timed(subject, point))
    running = [point.seconds for point in points if not point.failure]
    if not learns or not running:
        return points
    # As many updates for all, and no more than some seconds for the slowest.
    affordable = max(50, int(25 * SECONDS / max(running)))
    updates = min(LEARNING_UPDATES, subject.training.steps, affordable)
    return [_learned(subject, point, updates) for point in points]


def in_rounds(
    points: list[SettingPoint], run: Callable[[SettingPoint, int], SettingPoint]
) -> list[SettingPoint]:
    """Run all points in turn, in the opposite order of the round before; a failure ends a point's.

    `run` returns a point with one more round, given the round's number.
    """
    found = list(points)
    for number in range(ROUNDS):
        order = range(len(found)) if number % 2 == 0 else reversed(range(len(found)))
        for place in order:
            if not found[place].failure:
                found[place] = run(found[place], number)
    return found


def reached_loss(losses: Sequence[float]) -> float:
    """Return the loss that a training has reached: the mean of its last quarter."""
    return fmean(losses[-max(1, int(REACHED_SHARE * len(losses))) :])


def measure_batch_sizes(subject: Subject, largest: int) -> list[SettingPoint]:
    """Time updates of one micro-batch, of powers of two from 8 rows (or fewer rows of data).

    Raises:
        PerennialError: there are fewer than 8 rows, or so many do not fit into memory.
    """
    limit = min(largest, subject.data.rows)
    sizes = [2**power for power in range(3, 24) if 2**power <= limit]
    if not sizes:
        raise PerennialError(
            f"not enough rows to probe: the training split has {subject.data.rows} rows, --max is "
            f"{largest}",
            action="probe with at least 8 of both",
        )
    names = "training.global_batch_size", "training.micro_batch_size"
    points = measure(subject, [dict.fromkeys(names, n) for n in sizes], learns=False)
    if points[0].failure:
        raise PerennialError(
            f"not even {sizes[0]} examples can be trained on",
            evidence=points[0].failure,
            action="use memory.activation_checkpointing, a smaller model or another device",
        )
    return points


@dataclass(frozen=True)
class Knee:
    """From which size on throughput is within a tenth of the best, as far as the rounds tell.

    Attributes:
        earliest: The smallest size that comes as close in the fastest rounds.
        latest: The smallest size that comes as close in the slowest rounds, too; None if none does.
    """

    earliest: SettingPoint
    latest: SettingPoint | None

    @property
    def is_clear(self) -> bool:
        """Whether both are the same size."""
        return self.latest is not None and self.latest.rows == self.earliest.rows


def find_knee(points: Sequence[SettingPoint]) -> Knee:
    """Return from which size on throughput comes within a tenth of the best one's median."""
    enough = KNEE_SHARE * max(point.throughput for point in points)
    earliest = next(point for point in points if point.throughputs[1] >= enough)
    latest = next((point for point in points if point.throughputs[0] >= enough), None)
    return Knee(earliest, latest)


def with_changes(training: TrainingSection, changes: Changes) -> TrainingSection:
    """Return the section with options replaced.

    Raises:
        pydantic.ValidationError: it refuses them.
    """
    document = with_values({"training": training.model_dump(mode="json")}, changes)
    return TrainingSection.from_json(canonical_json(document["training"]))


def _checked(subject: Subject, changes: Changes) -> SettingPoint:
    try:
        training = with_changes(subject.training, changes)
    except ValidationError as error:
        return SettingPoint(changes, failure=str(error.errors()[0]["msg"]))
    return SettingPoint(changes, training.global_batch_size)


def _timed(subject: Subject, point: SettingPoint) -> SettingPoint:
    """Return the point with one more round."""
    is_gpu = subject.device.type == "cuda"
    try:
        with closing(_update(subject, point.changes)) as update:
            if is_gpu:
                torch.cuda.reset_peak_memory_stats(subject.device)
            times: list[float] = []
            rate = subject.training.optimizer.learning_rate
            while len(times) < 3 + WARMUP_UPDATES or sum(times[WARMUP_UPDATES:]) < SECONDS:
                start = time.perf_counter()
                update(len(times), rate)
                times.append(time.perf_counter() - start)
            peak = torch.cuda.max_memory_allocated(subject.device) if is_gpu else 0
    except Exception as error:  # a kernel, compiler or type that this machine lacks, or memory
        return _failed(point, error)
    rounds = (*point.rounds, median(times[WARMUP_UPDATES:]))
    return replace(point, rounds=rounds, memory_bytes=max(peak, point.memory_bytes))


def _learned(subject: Subject, point: SettingPoint, updates: int) -> SettingPoint:
    """Return the point with the losses that it reaches."""
    losses: list[float] = []
    for number in range(SEEDS):
        if point.failure:
            break
        changes = {**point.changes, "training.seed": subject.training.seed + number}
        training = with_changes(subject.training, changes)
        try:
            with closing(_update(subject, changes)) as update:
                course = [
                    update(step, follow_schedule(update.optimizer, training, step)).loss
                    for step in range(updates)
                ]
        except Exception as error:
            point = _failed(point, error)
        else:
            losses.append(reached_loss(course))
            if not math.isfinite(losses[-1]):
                point = replace(point, failure="its loss is not finite")
    return replace(point, losses=tuple(losses))


def _update(subject: Subject, changes: Changes) -> Update:
    training = with_changes(subject.training, changes)
    plan = BatchPlan(training.global_batch_size, training.micro_batch_size, 1)
    loading = training.loading.on(subject.device.type)
    return Update(replace(subject, training=training), plan, loading=loading)


def _failed(point: SettingPoint, error: Exception) -> SettingPoint:
    gc.collect()  # of a GPU's memory, what the failed attempt still holds
    torch.compiler.reset()
    lines = str(error).strip().splitlines() or [""]
    return replace(point, failure=f"{type(error).__name__}: {lines[0]}"[:200])
