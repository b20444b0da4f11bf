"""Work over partitions in a process pool and on Dask: the same bytes, and at what cost.

    python -m benchmarks.executors --write

The work is that of a snapshot: SHA-256, footer and rows by day of each partition, local files.
"""

import argparse
import hashlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import psutil

from benchmarks.record import keep_page
from dask_cluster import DaskCluster, dask_cluster
from perennial.clients.object_store import open_store
from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.environment import DASK_SCHEDULER
from perennial.data.executor import open_executor
from perennial.data.partitions import find_partitions
from perennial.snapshot_data.pinning import _pin_batch

RESULTS = "executors.md"
WORKERS = 2


def write_partitions(folder: Path, partitions: int, rows: int) -> DataSection:
    """Write partitions of a day each."""
    for number in range(partitions):
        day = datetime(2024, 1, 1) + timedelta(days=number)
        moments = pl.datetime_range(
            day, day + timedelta(days=1), timedelta(days=1) / rows, closed="left", eager=True
        )
        values = pl.int_range(rows, eager=True)
        table = pl.DataFrame({"at": moments, "label": values % 2, "x": values * 0.1 + number})
        table.write_parquet(folder / f"{number:05}.parquet")
    return DataSection(uri=str(folder), label="label", time="at")


def digest_of(executor: Executor, data: DataSection, cache: Path) -> str:
    """Return a digest of what the executor found out about all partitions, a task for each."""
    items = find_partitions(open_store(data.uri)).partitions
    pin = partial(_pin_batch, data, SplitSection(), cache)
    found = pl.concat(executor.map(pin, [[item] for item in items]))
    return hashlib.sha256(found.write_ipc(None).getvalue()).hexdigest()


def overhead_ms(executor: Executor, tasks: int) -> float:
    """Return milliseconds of an empty task."""
    began = time.perf_counter()
    assert sum(executor.map(abs, range(tasks))) == tasks * (tasks - 1) // 2
    return (time.perf_counter() - began) / tasks * 1000


@contextmanager
def on_dask(folder: Path) -> Iterator[DaskCluster]:
    """A scheduler and two workers of which the environment knows."""
    folder.mkdir()
    with dask_cluster(folder, WORKERS) as cluster:
        os.environ[DASK_SCHEDULER] = cluster.address
        try:
            yield cluster
        finally:
            del os.environ[DASK_SCHEDULER]


def kill_one_worker(cluster: DaskCluster) -> None:
    """Kill the process under the first nanny."""
    for child in psutil.Process(cluster.processes[1].pid).children():
        if "spawn_main" in " ".join(child.cmdline()):
            child.send_signal(signal.SIGKILL)


def measure(
    executor: Executor, data: DataSection, cache: Path, tasks: int
) -> tuple[str, float, float]:
    """Return digest, seconds and an empty task's milliseconds, all workers being there."""
    overhead_ms(executor, 50)
    began = time.perf_counter()
    digest = digest_of(executor, data, cache)
    return digest, time.perf_counter() - began, overhead_ms(executor, tasks)


def compare(folder: Path, partitions: int, rows: int, tasks: int) -> list[str]:
    """Measure all ways; return the lines of the table."""
    (folder / "data").mkdir()
    data = write_partitions(folder / "data", partitions, rows)
    cache = folder / "cache"
    alone = digest_of(ThreadOfItsOwn(), data, cache)
    found = {}
    with open_executor(partitions, WORKERS) as pool:
        found["process pool"] = measure(pool, data, cache, tasks)
    with on_dask(folder / "dask") as cluster, open_executor(partitions) as dask:
        found["Dask"] = measure(dask, data, cache, tasks)
        timer = threading.Timer(found["Dask"][1] / 2, kill_one_worker, [cluster])
        timer.start()
        found["Dask, a worker killed in the middle"] = measure(dask, data, cache, tasks)
        timer.join()
    assert {digest for digest, _, _ in found.values()} == {alone}
    return [
        f"| {name} | {alone[:12]}… | {seconds:.2f} | {overhead:.2f} |"
        for name, (_, seconds, overhead) in found.items()
    ]


class ThreadOfItsOwn(Executor):
    """The built-in `map`, as an executor."""

    map = staticmethod(map)  # type: ignore[assignment]


def page(lines: list[str], partitions: int, rows: int) -> str:
    """The table."""
    return "\n".join([
        "# Executors", "",
        f"`python -m benchmarks.executors`: {partitions:,} partitions of {rows:,} rows,",
        f"a task for each, {WORKERS} workers on this machine, which other work shares. The digest",
        "is that of all results, and equal to that of one process without an executor.", "",
        "| executor | digest of the results | s | ms for an empty task |", "|---|---|---|---|",
        *lines, "",
    ])  # fmt: skip


def main() -> None:
    """Print the page; with --write, keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=400)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--tasks", type=int, default=2_000)
    parser.add_argument("--write", action="store_true", help=f"keep it in {RESULTS}")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        lines = compare(Path(folder), options.partitions, options.rows, options.tasks)
    text = page(lines, options.partitions, options.rows)
    if options.write:
        keep_page(RESULTS, text)
    print(text)


if __name__ == "__main__":
    main()
