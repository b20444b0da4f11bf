"""Probe verbs: short measurements on this machine for two options of `[training]`."""

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from perennial.contract import Contract
from perennial.contracts.data import Split
from perennial.contracts.errors import PerennialError
from perennial.contracts.toml import toml_line
from perennial.data.dataset import Dataset
from perennial.engine.data.encoded import EncodedSplit, encode_split
from perennial.engine.profiling.probe import (
    BatchPoint,
    Knee,
    RatePoint,
    Subject,
    best_device,
    find_knee,
    probe_batch_sizes,
    probe_learning_rates,
    suggested_rate,
)
from perennial.engine.profiling.settings import (
    SettingPoint,
    is_better,
    probe_settings,
)
from perennial.engine.task import load_task
from perennial.reports.charts import line_chart
from perennial.reports.page import Page
from perennial.snapshot_data.manifest import take_snapshot


@contextmanager
def subject_of(contract: Contract) -> Iterator[Subject]:
    """The contract's task and training rows, encoded in a folder that goes away afterwards."""
    snapshot = take_snapshot(contract.data, contract.split)
    task = load_task(contract.model.task, contract.model.options, snapshot.task_columns)
    dataset = Dataset(snapshot)
    task.fit(dataset.scan(Split.TRAIN))
    with tempfile.TemporaryDirectory(prefix="perennial-probe-") as folder:
        encode_split(task, dataset, Split.TRAIN, Path(folder) / "train", snapshot.digest())
        data = EncodedSplit(Path(folder) / "train")
        yield Subject(task, data, contract.training, best_device())


def sizes_up_to(largest: int, rows: int) -> list[int]:
    """Powers of two, from 8 (or less, for few rows) to the largest.

    Raises:
        PerennialError: the data has not even one row to spare.
    """
    limit = min(largest, rows)
    sizes = [2**power for power in range(3, 24) if 2**power <= limit]
    if not sizes:
        raise PerennialError(
            f"not enough rows to probe: the training split has {rows} rows, --max is {largest}",
            action="probe with at least 8 of both",
        )
    return sizes


def batch_size_lines(points: Sequence[BatchPoint], current: int) -> Iterator[str]:
    """Yield the table of medians and spreads, and the size to take, if the rounds tell one."""
    knee = find_knee(points)
    yield (
        f"{'micro_batch_size':>16}  {'ms per update':>13}  {'examples/s':>11}  "
        f"{'spread over the rounds':>24}  {'memory':>9}"
    )
    for point in points:
        memory = f"{point.memory_bytes / 2**20:,.0f} MiB" if point.memory_bytes else "-"
        mark = "  <- knee" if knee.is_clear and point is knee.earliest else ""
        mark += "  (the contract's)" if point.rows == current else ""
        low, high = point.throughputs
        yield (
            f"{point.rows:>16,}  {point.seconds * 1e3:>13.2f}  {point.rows_per_second:>11,.0f}  "
            f"{f'{low:,.0f} to {high:,.0f}':>24}  {memory:>9}{mark}"
        )
    yield _advice(points, knee, current)


def _advice(points: Sequence[BatchPoint], knee: Knee, current: int) -> str:
    """Return the size to take, or why the measurements name none."""
    first, last = points[0], points[-1]
    later = "after changing global_batch_size, probe the learning rate again"
    if len(points) == 1:
        return f"no clear knee: only {first.rows} was measured"
    if not knee.is_clear:
        end = knee.latest.rows if knee.latest is not None else last.rows
        why = f"by some rounds it is {knee.earliest.rows}, by others {end}"
        if knee.latest is None:
            best = max(points, key=lambda point: point.rows_per_second)
            low, high = best.throughputs
            why = f"rounds of {best.rows} rows reach {low:,.0f} to {high:,.0f} examples/s"
        kept = knee.latest is None or knee.earliest.rows <= current <= end
        advice = f"keep micro_batch_size = {current}" if kept else f"try {knee.earliest.rows}"
        return f"no clear knee: {why}; {advice}, or probe again on a machine without other work"
    if knee.earliest is first:
        return (
            f"no clear knee: {first.rows} is within a tenth of the best throughput already; choose "
            "micro_batch_size by memory, and global_batch_size by how well the model learns"
        )
    if knee.earliest is last:
        return (
            f"no clear knee: throughput still rises at {last.rows}, the largest size that was "
            "measured; probe larger ones with --max, if memory and learning allow"
        )
    return (
        f"take micro_batch_size = {knee.earliest.rows}: the smallest within a tenth of the best "
        f"throughput in all {len(first.rounds)} rounds; {later}"
    )


def learning_rate_page(points: Sequence[RatePoint], contract: Contract) -> Page:
    """The picture of a range test."""
    rate = suggested_rate(points)
    summary = (
        f"take learning_rate = {rate:.2g}" if rate else "the loss never fell: no rate is suggested"
    )
    page = Page("Learning rate probe", outcome="neutral" if rate else "warned", summary=summary)
    series = {
        "loss": [(math.log10(point.rate), point.loss) for point in points],
        "smoothed": [(math.log10(point.rate), point.smoothed) for point in points],
    }
    marks = {"the contract's": math.log10(contract.training.optimizer.learning_rate)}
    if rate:
        marks["suggested"] = math.log10(rate)
    page.figure(
        line_chart(series, x_label="log10 of the learning rate", y_label="loss", marks=marks),
        "The learning rate grows from update to update; the test ends where the loss diverges.",
    )
    return page


def probe_batch_size(contract: Contract, largest: int) -> Iterator[str]:
    """Measure throughput; return the lines to print."""
    with subject_of(contract) as subject:
        sizes = sizes_up_to(largest, subject.data.rows)
        points = probe_batch_sizes(subject, sizes)
    if not points:
        raise PerennialError(
            f"not even {sizes[0]} examples fit into memory",
            action="use memory.activation_checkpointing, a smaller model or another device",
        )
    if len(points) < len(sizes):
        yield f"{sizes[len(points)]:,} examples no longer fit into memory"
    yield from batch_size_lines(points, contract.training.micro_batch_size)


def probe_lr(contract: Contract, picture: Path) -> Iterator[str]:
    """Run a range test and draw it; return the lines to print."""
    with subject_of(contract) as subject:
        points = list(probe_learning_rates(subject))
    if len(points) < 2:
        raise PerennialError(
            "the loss diverged at once, at a learning rate of 1e-6",
            action="run `perennial run` as far as check_skeleton, which looks for the cause",
        )
    rate = suggested_rate(points)
    learning_rate_page(points, contract).write(picture)
    lowest = min(points, key=lambda point: point.smoothed)
    yield (
        f"loss {points[0].loss:.4g} at first, {lowest.smoothed:.4g} at best (learning rate "
        f"{lowest.rate:.2g}); the test ended at {points[-1].rate:.2g}"
    )
    yield (
        f"take learning_rate = {rate:.2g} (the contract's: "
        f"{contract.training.optimizer.learning_rate:.2g})"
        if rate
        else "the loss never fell: check the task with check_skeleton first"
    )
    yield f"picture: {picture}"


def setting_lines(points: Sequence[SettingPoint]) -> Iterator[str]:
    """Yield the table of settings, the contract's own first, and the ones to take."""
    own = points[0]
    columns = "ms per update", "speed", "loss reached"
    yield "{:<44}  {:>13}  {:>6}  {:>26}".format("changed in [training]", *columns)
    for point in points:
        name = " ".join(toml_line(*each) for each in point.changes.items()) or "(the contract's)"
        if point.failure:
            yield f"{name:<44}  impossible here: {point.failure}"
            continue
        low, high = min(point.losses), max(point.losses)
        worse = "" if point.is_as_good(own) else "  worse"
        yield (
            f"{name:<44}  {point.seconds * 1e3:>13.2f}  {own.seconds / point.seconds:>6.2f}  "
            f"{f'{point.loss:.4g} ({low:.4g} to {high:.4g})':>26}{worse}"
        )
    better = [point for point in points[1:] if is_better(point, own)]
    fastest = min(better, key=lambda point: point.seconds, default=None)
    if fastest is None:
        yield "keep the contract's settings: none was faster in every round at equal quality"
        return
    yield (
        f"take, in [training] ({own.seconds / fastest.seconds:.2f} times as fast; its loss "
        "differs by less than another seed's would):"
    )
    yield from (f"  {toml_line(*each)}" for each in fastest.changes.items())


def probe_settings_of(contract: Contract) -> Iterator[str]:
    """Measure precision, compilation, loading and micro-batch; return the lines to print."""
    with subject_of(contract) as subject:
        points = probe_settings(subject)
    yield from setting_lines(points)
