"""Probe verb: what is fastest at equal quality on this machine, measured on the contract's rows."""

import math
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import starmap
from pathlib import Path
from statistics import median

from pydantic import JsonValue, ValidationError

from perennial.contract import Contract
from perennial.contract_file.edits import change_options
from perennial.contracts.data import Split
from perennial.contracts.environment import Environment
from perennial.contracts.errors import PerennialError, TrainingFailedError
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.toml import toml_line
from perennial.contracts.training import TrainingResult
from perennial.contracts.user_code import RunStopped
from perennial.data.dataset import Dataset
from perennial.engine.data.encoded import EncodedSplit, encode_split
from perennial.engine.evaluation.scoring import scoring_device
from perennial.engine.profiling.probe import (
    RatePoint,
    Subject,
    count_devices,
    probe_learning_rates,
    suggested_rate,
    use_threads,
)
from perennial.engine.profiling.settings import (
    LEARNING_UPDATES,
    RATE,
    Changes,
    Knee,
    SettingPoint,
    best_of,
    candidates,
    compare_settings,
    find_knee,
    in_rounds,
    measure,
    measure_batch_sizes,
    reached_loss,
    require_own_settings,
)
from perennial.engine.task import load_task
from perennial.reports.charts import line_chart
from perennial.reports.page import Page
from perennial.snapshot_data.manifest import take_snapshot
from perennial.studies.space import read_with
from perennial.training_jobs.attempts import run_to_end
from perennial.training_jobs.config import TrainModelConfig
from perennial.training_jobs.identity import training_job
from perennial.training_jobs.launcher import LocalLauncher

PARTS = ("learning-rate", "batch-size", "precision", "compile", "loading", "processes")
MOST_PROCESSES = 8
TRAINING_SECONDS = 3.0
"""About how long the updates of one short training take."""


def probe_contract(
    contract: Contract, parts: Sequence[str], largest: int = 8192, picture: Path | None = None
) -> Iterator[str]:
    """Measure the parts; yield the lines to print, the last of them the options to take.

    `largest` is a micro-batch, in rows; `picture` is where the learning rate range test is drawn.
    """
    snapshot = take_snapshot(contract.data, contract.split)
    if contract.training.distillation is not None:
        yield "measured without teachers, which cost a step hardly anything"
        training = contract.training.model_copy(update={"distillation": None})
        contract = contract.model_copy(update={"training": training})
    taken: Changes = {}
    with subject_of(contract, snapshot) as subject:
        proposed: list[Changes] = []
        if "learning-rate" in parts and contract.model.initial.source != "scratch":
            yield "no range test of the learning rate: it would start from random weights, and the"
            yield f'contract from others (model.initial.source = "{contract.model.initial.source}")'
        elif "learning-rate" in parts:
            rate = yield from _range_test(subject, picture)
            proposed += [{RATE: rate}] if rate is not None else []
        if "batch-size" in parts:
            points = measure_batch_sizes(subject, largest)
            yield from table("throughput of a micro-batch", points)
            yield knee_line([point for point in points if not point.failure])
            proposed += _micro_batches(points, subject)
        wanted = [*proposed, *candidates(subject, parts)]
        if wanted:
            points = compare_settings(subject, wanted)
            taken = best_of(points)
            yield from table("one process", points)
        elif "processes" in parts:
            points = measure(subject, [{}], learns=False)
            require_own_settings(points[0])
    if "processes" in parts:
        updates = min(
            LEARNING_UPDATES,
            contract.training.steps,
            max(20, int(TRAINING_SECONDS / points[0].seconds)),
        )
        points = train_settings(contract, snapshot, taken, updates)
        yield from table("whole trainings", points)
        taken = best_of(points)
    yield from recommendation(taken)


@contextmanager
def subject_of(contract: Contract, snapshot: Snapshot) -> Iterator[Subject]:
    """The contract's task and training rows, encoded in a folder that goes away afterwards."""
    task = load_task(contract.model.task, contract.model.options, snapshot.task_columns)
    dataset = Dataset(snapshot)
    task.fit(dataset.scan(Split.TRAIN))
    with tempfile.TemporaryDirectory(prefix="perennial-probe-") as folder:
        encode_split(task, dataset, Split.TRAIN, Path(folder) / "train", snapshot.digest())
        data = EncodedSplit(Path(folder) / "train")
        with use_threads(contract.resources.threads_per_process):
            yield Subject(task, data, contract.training, scoring_device())


def _range_test(subject: Subject, picture: Path | None) -> Generator[str, None, float | None]:
    """Run a range test; yield its lines, and return the rate that it suggests."""
    points = list(probe_learning_rates(subject))
    if len(points) < 2:
        raise PerennialError(
            "the loss diverged at once, at a learning rate of 1e-6",
            action="run `perennial sanity`, which looks for the cause",
        )
    rate, own = suggested_rate(points), subject.training.optimizer.learning_rate
    if picture is not None:
        learning_rate_page(points, own).write(picture)
        yield f"picture: {picture}"
    lowest = min(points, key=lambda point: point.smoothed)
    yield (
        f"learning rate range test: loss {points[0].loss:.4g} at first, {lowest.smoothed:.4g} at "
        f"best (rate {lowest.rate:.2g}); it ended at {points[-1].rate:.2g}"
    )
    if rate is None:
        yield "the loss never fell: run `perennial sanity` first"
        return None
    yield f"it suggests {rate:.2g} (the contract's: {own:.2g})"
    return float(f"{rate:.2g}")


def learning_rate_page(points: Sequence[RatePoint], own: float) -> Page:
    """Return the picture of a range test."""
    rate = suggested_rate(points)
    summary = f"suggested: {rate:.2g}" if rate else "the loss never fell: no rate is suggested"
    page = Page(
        "Learning rate range test", outcome="neutral" if rate else "warned", summary=summary
    )
    series = {
        "loss": [(math.log10(point.rate), point.loss) for point in points],
        "smoothed": [(math.log10(point.rate), point.smoothed) for point in points],
    }
    marks = {"the contract's": math.log10(own)}
    if rate:
        marks["suggested"] = math.log10(rate)
    page.figure(
        line_chart(series, x_label="log10 of the learning rate", y_label="loss", marks=marks),
        "The learning rate grows from update to update; the test ends where the loss diverges.",
    )
    return page


def _micro_batches(points: Sequence[SettingPoint], subject: Subject) -> list[Changes]:
    """Return micro-batches to compare at the contract's global batch: the knee, and the whole."""
    own, whole = subject.training.micro_batch_size, subject.training.global_batch_size
    measured = [point for point in points if not point.failure]
    sizes = {min(find_knee(measured).earliest.rows, whole)}
    sizes |= {whole} if whole <= measured[-1].rows else set()
    return [{"training.micro_batch_size": size} for size in sorted(sizes - {min(own, whole)})]


def knee_line(points: Sequence[SettingPoint]) -> str:
    """Return where throughput stops to grow, or why the measurements name no such size."""
    knee, first, last = find_knee(points), points[0], points[-1]
    if len(points) == 1:
        return f"no clear knee: only {first.rows} was measured"
    if not knee.is_clear:
        return f"no clear knee: {_why_unclear(points, knee)}; probe on a machine without other work"
    if knee.earliest is first:
        return f"no clear knee: {first.rows} is within a tenth of the best throughput already"
    if knee.earliest is last:
        return (
            f"no clear knee: throughput still rises at {last.rows}, the largest size that was "
            "measured; probe larger ones with --max"
        )
    return (
        f"knee at {knee.earliest.rows}: the smallest size within a tenth of the best throughput in "
        f"all {len(first.rounds)} rounds; a larger global_batch_size needs another learning rate"
    )


def _why_unclear(points: Sequence[SettingPoint], knee: Knee) -> str:
    if knee.latest is not None:
        return f"by some rounds it is {knee.earliest.rows}, by others {knee.latest.rows}"
    best = max(points, key=lambda point: point.throughput)
    low, high = best.throughputs
    return f"rounds of {best.rows} rows reach {low:,.0f} to {high:,.0f} examples/s"


def train_settings(
    contract: Contract, snapshot: Snapshot, taken: Changes, updates: int
) -> list[SettingPoint]:
    """Train briefly with other numbers of processes, and with the changes that one process prefers.

    These are whole trainings, as `perennial run` starts them: with their communication, and the
    same seeds and batches for all. Each round trains with another seed.

    Args:
        contract: What is trained.
        snapshot: Its data.
        taken: The changes that were better in one process.
        updates: Length of a training; the schedule stays the contract's.

    Returns:
        The contract as it is, then one point per change.
    """
    schedule = contract.training.schedule.steps or contract.training.steps
    # The schedule stays that of the whole training; nothing is kept or profiled on the way.
    short: dict[str, JsonValue] = {
        "training.steps": updates,
        "training.schedule.steps": schedule,
        "training.schedule.allow_other_length": True,
        "training.extended_from": [],
        "training.evaluate_every_steps": updates,
        "training.log_every_steps": max(1, updates // 10),
        "training.checkpoints.keep_every_steps": None,
        "training.profile": None,
        "resources.launcher": "local",
    }
    document = contract.model_dump(mode="json", include={"model", "training", "resources"})
    with tempfile.TemporaryDirectory(prefix="perennial-probe-") as folder:
        snapshot.write(Path(folder) / "snapshot")

        def run(point: SettingPoint, number: int) -> SettingPoint:
            seed = {"training.seed": contract.training.seed + number}
            try:
                settings = read_with(TrainModelConfig, document, {**short, **seed, **point.changes})
            except ValidationError as error:
                return replace(point, failure=str(error.errors()[0]["msg"]))
            return _trained(settings, point, Path(folder))

        wanted = [{}, *([taken] if taken else []), *process_changes(contract, taken)]
        points = in_rounds([SettingPoint(changes) for changes in wanted], run)
    if points[0].failure:
        raise PerennialError(
            "the contract cannot be trained on this machine",
            evidence=points[0].failure,
            action="make `perennial run` work with this contract first",
        )
    return points


def process_changes(contract: Contract, taken: Changes) -> Iterator[Changes]:
    """Yield other numbers of processes that share all cores of this machine, or its GPUs."""
    own, devices, is_gpu = contract.resources, count_devices(), scoring_device().type == "cuda"
    for number in (2**power for power in range(MOST_PROCESSES.bit_length())):
        threads = own.threads_per_process if is_gpu else max(1, devices // number)
        if number <= devices and (number, threads) != (own.num_processes, own.threads_per_process):
            changes = {**taken, "resources.num_processes": number}
            if threads != own.threads_per_process:
                changes["resources.threads_per_process"] = threads
            yield changes


def _trained(settings: TrainModelConfig, point: SettingPoint, folder: Path) -> SettingPoint:
    """Return the point with one more round: a training in a store of its own."""
    store = tempfile.mkdtemp(dir=folder)
    job = training_job(settings, folder / "snapshot", Environment(store, tracking_uri=""))
    # Outside the store, which each training has of its own: the rows are encoded once for all.
    job = job.model_copy(update={"shared": str(folder / "encoded")})
    launcher = LocalLauncher(settings.resources.threads_per_process)
    try:
        run_to_end(job, launcher, max_restarts=0)
    except TrainingFailedError as error:
        return replace(point, failure=error.problem)
    except RunStopped as stopped:
        raise KeyboardInterrupt from stopped
    history, rows = TrainingResult.read(job.root).history, settings.training.global_batch_size
    # The first interval has the warm-up of kernels, and compilation.
    seconds = median(rows / found.examples_per_second for found in history[1:] or history)
    return replace(
        point,
        rows=rows,
        rounds=(*point.rounds, seconds),
        losses=(*point.losses, reached_loss([found.loss for found in history])),
    )


def table(title: str, points: Sequence[SettingPoint]) -> Iterator[str]:
    """Yield a table of settings; its first point is what the others are compared with."""
    first = points[0]
    columns = "examples/s", "spread over the rounds", "speed", "memory", "loss reached"
    yield "\n{:<48}  {:>10}  {:>22}  {:>5}  {:>9}  {}".format(title, *columns).rstrip()
    for point in points:
        # Without the tables' names, which tell a reader nothing.
        named = ((name.rpartition(".")[2], value) for name, value in point.changes.items())
        name = ", ".join(starmap(toml_line, named)) or "(the contract's)"
        if point.failure:
            yield f"{name:<48}  impossible here: {point.failure}"
            continue
        low, high = point.throughputs
        memory = f"{point.memory_bytes / 2**20:,.0f} MiB" if point.memory_bytes else "-"
        yield (
            f"{name:<48}  {point.throughput:>10,.0f}  {f'{low:,.0f} to {high:,.0f}':>22}  "
            f"{point.throughput / first.throughput:>5.2f}  {memory:>9}  {_loss(point, first)}"
        ).rstrip()


def _loss(point: SettingPoint, own: SettingPoint) -> str:
    if not point.losses:
        return ""
    low, high = min(point.losses), max(point.losses)
    verdict = "better" if point is not own and point.is_better(own) else ""
    if not point.is_as_good(own):
        verdict = "worse loss"
    return f"{point.loss:.4g} ({low:.4g} to {high:.4g})  {verdict}"


def recommendation(taken: Changes) -> Iterator[str]:
    """Yield the options to take as TOML, or that the contract's are best."""
    if not taken:
        yield "\nkeep the contract's settings: nothing was faster, or lower in loss"
        return
    yield "\ntake (measured together, faster or lower in loss beyond the noise of seeds):"
    yield from change_options("", taken).strip().splitlines()
    if RATE in taken:
        yield "# by the first updates alone: `perennial study` tunes the whole training"
