"""Settings: which precision, compilation, loading and micro-batch are fastest at equal quality."""

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
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
from perennial.engine.profiling.probe import ROUNDS, WARMUP_UPDATES, Subject, Update

Changes = Mapping[str, JsonValue]
"""Option of `[training]` by its dotted name → value."""
SEEDS = 3
LEARNING_UPDATES = 200
# The mean over this last share of the updates is the loss that is reached.
REACHED_SHARE = 0.25


@dataclass(frozen=True)
class SettingPoint:
    """The speed and the loss of a training with some options changed.

    Attributes:
        changes: What differs from the contract; empty for the contract's own settings.
        rounds: Seconds of an update, the median of each round.
        losses: Training loss reached after the same number of updates, one per seed.
        failure: Why it cannot run here; empty if it can.
    """

    changes: Changes
    rounds: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    failure: str = ""

    @property
    def seconds(self) -> float:
        """Seconds of an update: the median of the rounds."""
        return median(self.rounds)

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


def candidates(subject: Subject) -> Iterator[Changes]:
    """Yield single changes that may be faster on this device; the global batch stays as it is."""
    training, device = subject.training, subject.device
    is_gpu = device.type == "cuda"
    types = ("fp32", "bf16", "fp16") if is_gpu else ("fp32", "bf16")
    yield from ({"precision": name} for name in types if name != training.precision)
    if is_gpu and torch.cuda.get_device_capability(device) >= TF32_CAPABILITY:
        yield {"allow_tf32": not training.allow_tf32}
    yield {"compile": not training.compile}
    yield from ({"loading.workers": n} for n in (1, 2, 4) if n != training.loading.workers)
    own, whole = training.micro_batch_size, training.global_batch_size
    sizes = {min(own * 2, whole), max(1, min(own, whole) // 2), whole} - {min(own, whole)}
    yield from ({"micro_batch_size": size} for size in sorted(sizes))


def probe_settings(subject: Subject, seconds: float = 0.2) -> list[SettingPoint]:
    """Measure the contract's own settings, single changes, and the useful ones together.

    Speed is measured in rounds, which time all settings in turn, so that whatever slows the machine
    down for a while does not look like an effect of a setting. Quality is the loss reached after
    the first updates of the contract's training, with the same initial weights and batches for all
    settings, over a few seeds.

    Args:
        subject: What is trained; its settings are the first point.
        seconds: How long a setting is measured in a round, at least three updates.

    Returns:
        The contract's own settings, then one point per change, then, if several changes are faster
        at equal quality, all of them together.
    """
    found = measure(subject, [{}, *candidates(subject)], seconds)
    own = found[0]
    if own.failure:
        raise PerennialError(
            "the contract's own settings cannot be measured on this machine",
            evidence=own.failure,
            action="change them, or probe on the machine that trains",
        )
    useful = [each for each in found[1:] if is_better(each, own)]
    together = combined(useful)
    if len(together) > 1:
        found += measure(subject, [{}, together], seconds)[1:]
    return found


def is_better(point: SettingPoint, own: SettingPoint) -> bool:
    """Whether a setting is faster than the contract's own at equal quality."""
    return not point.failure and point.is_faster(own) and point.is_as_good(own)


def combined(useful: Sequence[SettingPoint]) -> Changes:
    """Return all changes together; of two values of one option, the faster one's."""
    slowest_first = sorted(useful, key=lambda point: -point.seconds)
    return {name: value for point in slowest_first for name, value in point.changes.items()}


def measure(subject: Subject, wanted: Sequence[Changes], seconds: float) -> list[SettingPoint]:
    """Return the points of these changes, in their order."""
    points = [_checked(subject, changes) for changes in wanted]
    for number in range(ROUNDS):
        order = range(len(points)) if number % 2 == 0 else reversed(range(len(points)))
        for place in order:
            points[place] = _timed(subject, points[place], seconds)
    running = [point.seconds for point in points if not point.failure]
    # As many updates for all, and no more than some seconds for the slowest.
    longest = max(running, default=1.0)
    affordable = max(50, int(25 * seconds / longest))
    updates = min(LEARNING_UPDATES, subject.training.steps, affordable)
    return [_learned(subject, point, updates) for point in points]


def with_changes(training: TrainingSection, changes: Changes) -> TrainingSection:
    """Return the section with options replaced.

    Raises:
        pydantic.ValidationError: it refuses them.
    """
    document = with_values(training.model_dump(mode="json"), changes)
    return TrainingSection.from_json(canonical_json(document))


def _checked(subject: Subject, changes: Changes) -> SettingPoint:
    try:
        with_changes(subject.training, changes)
    except ValidationError as error:
        return SettingPoint(changes, failure=str(error.errors()[0]["msg"]))
    return SettingPoint(changes)


def _timed(subject: Subject, point: SettingPoint, seconds: float) -> SettingPoint:
    """Return the point with one more round."""
    if point.failure:
        return point
    try:
        with closing(_update(subject, point.changes)) as update:
            times: list[float] = []
            rate = subject.training.optimizer.learning_rate
            while len(times) < 3 + WARMUP_UPDATES or sum(times[WARMUP_UPDATES:]) < seconds:
                start = time.perf_counter()
                update(len(times), rate)
                times.append(time.perf_counter() - start)
    except Exception as error:  # a kernel, compiler or type that this machine lacks
        return _failed(point, error)
    return replace(point, rounds=(*point.rounds, median(times[WARMUP_UPDATES:])))


def _learned(subject: Subject, point: SettingPoint, updates: int) -> SettingPoint:
    """Return the point with the losses that it reaches."""
    losses: list[float] = []
    for number in range(SEEDS):
        if point.failure:
            break
        changes = {**point.changes, "seed": subject.training.seed + number}
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
            losses.append(fmean(course[-max(1, int(REACHED_SHARE * updates)) :]))
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
