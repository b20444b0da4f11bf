"""What the design costs at 1,000 models, 10⁹ rows and 512 GPUs, from figures measured small.

    python -m benchmarks.scale --write

Nothing here has run at these sizes. Every input names where it comes from; change it and run again.
"""

import argparse
import hashlib
import math
import platform
import random
import time
from dataclasses import dataclass
from datetime import date

from benchmarks.record import keep_page
from perennial.contracts.data import Split
from perennial.contracts.snapshot import DataFile

RESULTS = "scale.md"
# Seen on a live backend (KFP 2.16.1, Argo 3.7): pods are looked at every 10 s, and each task is a
# driver and an executor; a nested level is one more driver.
DRIVER_SECONDS, EXECUTOR_SECONDS = 10.0, 10.0
DAY = 24 * 3600.0


@dataclass(frozen=True)
class Chain:
    """A pipeline's longest path: seconds of own work, task by task, and its nested levels."""

    work: tuple[float, ...]
    levels: int

    def floor(self) -> float:
        """Seconds without any work: the root's driver, the levels' drivers, the tasks."""
        tasks = len(self.work) * (DRIVER_SECONDS + EXECUTOR_SECONDS)
        return DRIVER_SECONDS * (1 + self.levels) + tasks

    def pods(self) -> int:
        """Pods of a run along the path."""
        return 1 + self.levels + 2 * len(self.work)

    def seconds(self) -> float:
        """A run, with its work."""
        return self.floor() + sum(self.work)


# Seconds of work, assumed: a small table's steps, and ten minutes of training. Snapshot, validate,
# drift, decide; and the seven steps of a training; behind either a clean-up. A training that
# monitoring starts uses its snapshot. The levels are the exit handler and monitoring's condition.
LOOKING, MAKING, CLEAN_UP = (4.0, 10.0, 8.0, 4.0), (4.0, 10.0, 60.0, 600.0, 20.0, 20.0, 10.0), 1.0
MONITORING = Chain((*LOOKING, CLEAN_UP), levels=2)
TRAINING = Chain((*MAKING, CLEAN_UP), levels=1)
RETRAINING = Chain((*LOOKING, *MAKING[2:], CLEAN_UP), levels=2)


def fleet(models: int, spread_seconds: float, retrain_days: float, seed: int) -> dict[str, float]:
    """One day of a fleet: monitoring once a day each, a training now and then.

    Args:
        models: How many.
        spread_seconds: Over what time of the day their schedules are spread; 0 starts all at once.
        retrain_days: Mean days between two trainings of a model.
        seed: Of the draws.
    """
    draw = random.Random(seed)
    changes: list[tuple[float, int]] = []
    pods = 0
    for _ in range(models):
        start = draw.uniform(0, spread_seconds)
        run = RETRAINING if draw.random() < 1 / retrain_days else MONITORING
        pods += run.pods()
        changes += [(start, 1), (start + run.seconds(), -1)]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    busiest = models / max(spread_seconds, MONITORING.seconds()) * MONITORING.pods()
    return {"most": most, "pods": pods, "pods_per_second": busiest}


@dataclass(frozen=True)
class Gang:
    """A training on many GPUs that starts again, all of it, whenever one machine fails.

    Attributes:
        gpus: How many.
        state_gb: Weights and the optimizer's state.
        gb_per_second: What a machine of eight writes to, or reads from, the store.
        restart_seconds: From the failure until the processes load again.
        failures_per_gpu_hour: Of anything that ends the training.
    """

    gpus: int
    state_gb: float
    gb_per_second: float
    restart_seconds: float
    failures_per_gpu_hour: float

    def between_failures(self) -> float:
        """Seconds."""
        return 3600.0 / (self.gpus * self.failures_per_gpu_hour)

    def writing(self) -> float:
        """Seconds to write a checkpoint, or to load it, beside the training."""
        return self.state_gb / (self.gpus / 8) / self.gb_per_second


def useful_share(
    gang: Gang, interval: float, blocked: float, seed: int, days: float = 365.0
) -> float:
    """The share of the time that goes into steps which are kept, over a year.

    A checkpoint counts once it is written, `writing` after it was taken.
    """
    draw = random.Random(seed)
    now = kept = 0.0
    while now < 365 * DAY:
        alive = draw.expovariate(1 / gang.between_failures())
        period = interval + blocked
        saved = max(0, math.floor((alive - gang.writing()) / period)) * interval
        kept += saved
        now += alive + gang.restart_seconds + gang.writing()
    return kept / now


def hash_gb_per_second() -> float:
    """SHA-256 on this machine, which every partition is read through once."""
    block, began = bytes(1 << 20), time.perf_counter()
    digest = hashlib.sha256()
    for _ in range(512):
        digest.update(block)
    return 512 * len(block) / 1e9 / (time.perf_counter() - began)


def partition_bytes() -> int:
    """One partition in a snapshot's JSON."""
    uri = "s3://bucket/flights/year=2026/month=11/part-00000.parquet"
    day = date(2026, 11, 1)
    file = DataFile(
        uri=uri, size_bytes=15_000_000, sha256="0" * 64, rows=1_000_000,
        splits=(Split.TRAIN, Split.VALIDATION), days=(day, day),
    )  # fmt: skip
    return len(file.to_json())


def models_table() -> list[str]:
    """What a thousand models ask of Kubeflow Pipelines."""
    lines = ["| schedules of 1,000 models | runs at once | pods a day | pods created a second |",
             "|---|---|---|---|"]  # fmt: skip
    for name, spread in (("all at 05:30", 0.0), ("over one hour", 3600.0), ("over the day", DAY)):
        days = [fleet(1000, spread, retrain_days=14, seed=seed) for seed in range(20)]
        most = max(day["most"] for day in days)
        pods = sum(day["pods"] for day in days) / len(days)
        lines.append(f"| {name} | {most:.0f} | {pods:,.0f} | {days[0]['pods_per_second']:.2f} |")
    return lines


def gpus_table(gang: Gang) -> list[str]:
    """What interruptions cost, by how often a checkpoint is taken."""
    lines = ["| a checkpoint every | useful share of the time |", "|---|---|"]
    for minutes in (5, 10, 20, 30, 60, 120):
        shares = [useful_share(gang, minutes * 60.0, 0.5, seed) for seed in range(20)]
        lines.append(f"| {minutes} min | {sum(shares) / len(shares):.3f} |")
    return lines


def floor_lines() -> list[str]:
    """The least time of a run."""
    lines = ["| pipeline | tasks | levels | floor, s |", "|---|---|---|---|"]
    for name, chain in (
        ("continuous_training", TRAINING),
        ("drift_monitoring, quiet", MONITORING),
        ("drift_monitoring, retraining", RETRAINING),
    ):
        lines.append(f"| {name} | {len(chain.work)} | {chain.levels} | {chain.floor():.0f} |")
    return lines


def watcher_lines() -> list[str]:
    """A CronJob for each model."""
    rates = {minutes: 1000 / (60 * minutes) for minutes in (5, 15, 60)}
    rows = [f"| {minutes} min | {rate:.2f} |" for minutes, rate in rates.items()]
    return ["| watchers of 1,000 models, every | pods created a second |", "|---|---|", *rows]


def rows_lines() -> list[str]:
    """What a billion rows ask for: 78 s of CPU for 48 million, 5 MB for 327,346 of 26 columns.

    They are in `results/facts.md` and the README of `snapshot_data`.
    """
    per_row, bytes_per_row = 78 / 48e6, 5e6 / 327_346
    speed, size = hash_gb_per_second(), bytes_per_row
    return [
        f"- {size:.0f} GB of Parquet at {bytes_per_row:.0f} bytes a row.",
        f"- SHA-256 at {speed:.2f} GB/s on this machine: {size / speed:.0f} s.",
        f"- Facts of 26 columns: {1e9 * per_row / 3600:.1f} h of one core.",
        f"- 1,000 partitions: {1000 * partition_bytes() / 1e6:.2f} MB of snapshot.",
    ]


def gpus_lines() -> list[str]:
    """70 billion parameters, 12 bytes each with Adam; failures as in the Llama 3 report."""
    gang = Gang(
        512, state_gb=70e9 * 12 / 1e9, gb_per_second=1.0, restart_seconds=600.0,
        failures_per_gpu_hour=419 / (54 * 24 * 16384),
    )  # fmt: skip
    return [
        "70 billion parameters, 12 bytes each with Adam; 64 machines that each move 1 GB/s; ten",
        "minutes until the processes load again; interruptions as often as on 16,384 GPUs in the",
        "Llama 3 report (419 in 54 days).", "",
        f"- One interruption in {gang.between_failures() / 3600:.0f} h.",
        f"- A checkpoint is written in {gang.writing():.0f} s, {gang.state_gb / gang.gpus:.2f} GB "
        "for each process.", "",
        *gpus_table(gang),
    ]  # fmt: skip


def page() -> str:
    """All figures, with what they were made from."""
    machine = f"{date.today():%Y-%m-%d}, Python {platform.python_version()}, {platform.machine()}"
    return "\n".join([
        "# Scale", "", f"`python -m benchmarks.scale`: {machine}. Calculated and simulated from",
        "figures that were measured small; nothing ran at these sizes, so there is no verdict.", "",
        "## The floor of a run", "", *floor_lines(), "",
        "## 1,000 models", "", *models_table(), "", *watcher_lines(), "",
        "## 10⁹ rows", "", *rows_lines(), "",
        "## 512 GPUs", "", *gpus_lines(), "",
    ])  # fmt: skip


def main() -> None:
    """Print the page; with --write, keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"keep it in {RESULTS}")
    text = page()
    if parser.parse_args().write:
        keep_page(RESULTS, text)
    print(text)


if __name__ == "__main__":
    main()
