"""Streaming rows, beside resident rows and what other loaders make of the same Parquet.

    python -m benchmarks.streaming [--rows 1000000] [--mds FOLDER] [--write]

A table of 26 columns like that of the flights, sorted by time, is encoded by the tabular task and
gathered into batches of 1,024; no model is trained. Every way runs alone in a fresh process, with
cold caches for the epoch and for the resume, and the same shuffle window of 262,144 rows:

- resident: the whole split is encoded first;
- streaming, with 0 and 1 encoding processes, and over blocks that were encoded before (`warm`);
- a `DataLoader` over an `IterableDataset` that permutes row groups, encodes whole ones with the
  same task and shuffles inside a window, vectorised: no example is handled alone;
- mosaicml-streaming, if `--mds` names a folder with it, over encoded rows as MDS shards. Writing
  those is not counted.

`resume` is the time to the first batch of a process that begins at 80% of an epoch. Memory is the
largest sum of the proportional set sizes of all processes, over that of the libraries alone.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from benchmarks.record import keep_page
from perennial.clients.object_store import LocalObjectStore, open_store, sha256_of_file
from perennial.contracts.data import DataSection, ModelSection, Split, SplitSection
from perennial.contracts.snapshot import DataFile, Snapshot
from perennial.data.dataset import Dataset, selected_split
from perennial.data.row_groups import index_partitions, select_groups
from perennial.data.splits import with_split_rows
from perennial.engine.config.training import Loading
from perennial.engine.data.batching import BatchPlan, GlobalOrder
from perennial.engine.data.block_workers import BlockWorkers
from perennial.engine.data.blocks import BlockEncoder, EncoderRecipe, join_groups
from perennial.engine.data.encoded import EncodedSplit, encode_split
from perennial.engine.data.loader import Loader
from perennial.engine.data.streamed import StreamedLoader, StreamedSplit
from perennial.engine.job import FittedTask
from perennial.engine.task import Batch, Task, load_task

BATCH, WINDOW, GROUP_ROWS, PARTITIONS = 1_024, 262_144, 32_768, 12
MODEL = ModelSection(name="rows", task="perennial.tasks.tabular:TabularClassification")
RESUMED_AT = 0.8
MOST_SECONDS = 20.0  # of an epoch: slower ways do not reach its end
WAYS = {
    "resident": "resident",
    "streaming-0": "streaming, encoded in the training",
    "streaming-1": "streaming, 1 process",
    "warm-0": "streaming, encoded before",
    "torch-0": "DataLoader over Parquet, in the training",
    "torch-1": "DataLoader over Parquet, 1 process",
    "mds-0": "mosaicml-streaming over MDS, in the training",
    "mds-1": "mosaicml-streaming over MDS, 1 process",
}
GIB, MIB = 2**30, 2**20


@dataclass(frozen=True)
class Figures:
    """What one process measured.

    Attributes:
        first: Seconds to the first batch.
        rate: Examples per second after it, to the end of the epoch or for 20 s.
        cpu: CPU seconds of all processes per million examples, the first batch included.
        resume: Seconds to the first batch at 80% of an epoch.
        memory: Bytes.
    """

    first: float
    rate: float
    cpu: float
    resume: float
    memory: float


def write_table(folder: Path, rows: int) -> None:
    """Write the partitions, their snapshot and the fitted state."""
    random = np.random.default_rng(1)
    first = datetime(2025, 1, 1)
    part = rows // PARTITIONS
    files = []
    for number in range(PARTITIONS):
        seconds = np.sort(random.integers(0, 28 * 86_400, part))
        month = first.replace(month=number + 1)
        columns: dict[str, Any] = {f"x{index}": random.normal(size=part) for index in range(18)}
        columns |= {
            f"c{index}": random.choice([f"value {each}" for each in range(30)], part)
            for index in range(5)
        }
        columns["time"] = [month + timedelta(seconds=int(each)) for each in seconds]
        columns["id"] = np.arange(number * part, (number + 1) * part)
        columns["late"] = columns["x0"] + random.normal(size=part) > 0.5
        file = folder / "data" / f"part-{number:02}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        frame = pl.DataFrame(columns)
        frame.write_parquet(file, row_group_size=GROUP_ROWS)
        size = file.stat().st_size
        files.append(
            DataFile(uri=str(file), size_bytes=size, sha256=sha256_of_file(file), rows=part)
        )
    snapshot = Snapshot(
        data=DataSection(uri=str(folder / "data"), label="late", time="time", ids=("id",)),
        split=SplitSection(),
        files=tuple(files),
        columns={name: str(dtype) for name, dtype in frame.schema.items()},
        rows=part * PARTITIONS,
        split_rows={},
    )
    snapshot = with_split_rows(snapshot)
    snapshot.write(folder / "snapshot")
    task = load_task(MODEL.task, MODEL.options, snapshot.task_columns)
    task.fit(Dataset(snapshot).scan(Split.TRAIN))
    FittedTask(fingerprint="", state=task.state()).write(folder)
    index_partitions(snapshot, LocalObjectStore(folder / "store"))


class Subject:
    """The table in a folder, as a way finds it.

    Args:
        folder: Written by `write_table`.
        scratch: Empty.
    """

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.folder, self.scratch = folder, scratch
        self.snapshot = Snapshot.read(folder / "snapshot")
        self.state = FittedTask.read(folder).state
        self.task = self._fitted()
        self.rows = self.snapshot.split_rows[Split.TRAIN]

    def _fitted(self) -> Task:
        task = load_task(MODEL.task, MODEL.options, self.snapshot.task_columns)
        task.load_state(self.state)
        return task

    def batches(self, way: str, start: int) -> Iterator[Batch]:
        """Return the batches of an epoch from `start` on, in one of the ways."""
        name, _, workers = way.partition("-")
        make: Callable[[int, int], Iterator[Batch]] = getattr(self, name)
        return make(start, int(workers or 0))

    def resident(self, start: int, workers: int) -> Iterator[Batch]:
        """Encode the whole split, then gather."""
        encode_split(self.task, Dataset(self.snapshot), Split.TRAIN, self.scratch / "train", "one")
        data, plan = EncodedSplit(self.scratch / "train"), BatchPlan(BATCH, BATCH, 1)
        order = GlobalOrder(data.rows, 1)
        loader = Loader(self.task, data, order, plan, 0, seed=1, loading=Loading().on("cpu"))
        return self._walk(loader, start=start)

    def streaming(self, start: int, workers: int) -> Iterator[Batch]:
        """Encode blocks when they are needed."""
        return self._walk(*self._streamed(self.scratch / "cache", workers), start=start)

    def warm(self, start: int, workers: int) -> Iterator[Batch]:
        """Stream blocks that are in the cache."""
        return self._walk(*self._streamed(self.folder / "warm", workers), start=start)

    def _streamed(self, folder: Path, workers: int) -> tuple[StreamedLoader, StreamedSplit]:
        indexes = index_partitions(self.snapshot, open_store(str(self.folder / "store")))
        blocks = join_groups(select_groups(self.snapshot, indexes, Split.TRAIN))
        cache = folder, 64 * GIB
        recipe = EncoderRecipe(self.snapshot, MODEL, self.state, Split.TRAIN, cache, "one")
        encoder = BlockEncoder(recipe, self.task)
        pool = BlockWorkers(recipe, workers) if workers else None
        loading = Loading(shuffle_rows=WINDOW).on("cpu")
        data, plan = StreamedSplit(blocks, encoder, pool), BatchPlan(BATCH, BATCH, 1)
        loader = StreamedLoader(self.task, data, plan, 0, seed=1, loading=loading, total=float)
        return loader, data

    def _walk(
        self, loader: Loader, split: StreamedSplit | None = None, *, start: int
    ) -> Iterator[Batch]:
        try:
            for position in range(start, self.rows // BATCH):
                yield loader.batch(position).micro_batches[0]
        finally:
            loader.close()
            if split is not None:
                split.close()

    def torch(self, start: int, workers: int) -> Iterator[Batch]:
        """Read through PyTorch's loader, which can only skip what comes before `start`."""
        torch.manual_seed(1)
        data = WindowedRows(self.folder, self.scratch)
        context = "forkserver" if workers else None
        loader = DataLoader(
            data, batch_size=None, num_workers=workers, multiprocessing_context=context
        )
        return islice(iter(loader), start, None)

    def mds(self, start: int, workers: int) -> Iterator[Batch]:
        """Read MDS shards through mosaicml-streaming."""
        streaming = import_mosaic()
        data = streaming.StreamingDataset(
            local=str(self.folder / "mds"), shuffle=True, batch_size=BATCH,
            shuffle_block_size=WINDOW, shuffle_seed=1,
        )  # fmt: skip
        loader = streaming.StreamingDataLoader(data, batch_size=BATCH, num_workers=workers)
        if start:
            state = data.state_dict(start * BATCH, from_beginning=True)
            loader.load_state_dict(state)
        return iter(loader)


class WindowedRows(IterableDataset[Batch]):
    """Batches from whole row groups in a permuted order, shuffled inside a window of rows."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self._folder, self._scratch = folder, scratch

    def __iter__(self) -> Iterator[Batch]:
        subject = Subject(self._folder, self._scratch)
        places = [
            (file.uri, group)
            for file in subject.snapshot.files
            for group in range(pq.read_metadata(file.uri).num_row_groups)
        ]
        random = np.random.default_rng(1)
        random.shuffle(places)
        worker = get_worker_info()
        mine = places[worker.id :: worker.num_workers] if worker else places
        selected = selected_split(subject.snapshot) == Split.TRAIN.value
        parts: list[Batch] = []
        for number, (uri, group) in enumerate(mine, 1):
            table = pq.ParquetFile(uri).read_row_group(group)
            frame = cast("pl.DataFrame", pl.from_arrow(table)).filter(selected)
            if frame.height:
                parts.append(subject.task.encode(frame))
            rows = sum(len(part["label"]) for part in parts)
            if parts and (rows >= WINDOW or number == len(mine)):
                window = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
                order = torch.from_numpy(random.permutation(rows))
                parts = []
                for begin in range(0, rows - BATCH + 1, BATCH):
                    chosen = order[begin : begin + BATCH]
                    yield {name: tensor[chosen] for name, tensor in window.items()}


def import_mosaic() -> Any:  # noqa: ANN401 (an optional package without types)
    """Import mosaicml-streaming without its parts for single data sets, which need torchvision."""
    for name in ("multimodal", "text", "vision"):
        sys.modules[f"streaming.{name}"] = types.ModuleType(f"streaming.{name}")
    return import_module("streaming")


def write_shards(folder: Path) -> None:
    """Write the encoded rows of the training split as MDS, in file order."""
    with tempfile.TemporaryDirectory() as scratch:
        subject = Subject(folder, Path(scratch))
        writer = None
        for rows in Dataset(subject.snapshot).batches(Split.TRAIN, 16_384):
            arrays = {name: each.numpy() for name, each in subject.task.encode(rows).items()}
            if writer is None:
                columns = {
                    name: f"ndarray:{array.dtype}:{','.join(map(str, array.shape[1:])) or 1}"
                    for name, array in arrays.items()
                }
                writer = import_mosaic().MDSWriter(out=str(folder / "mds"), columns=columns)
            for index in range(rows.height):
                writer.write({name: np.atleast_1d(array[index]) for name, array in arrays.items()})
        if writer is not None:
            writer.finish()


class MemoryWatch:
    """Largest sum of proportional set sizes of this process and its children."""

    def __init__(self) -> None:
        self.start = self.largest = _set_size(os.getpid())
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Return the growth since the start, in bytes."""
        self._is_done.set()
        self._thread.join()
        return self.largest - self.start

    def _watch(self) -> None:
        while not self._is_done.wait(0.1):
            self.largest = max(self.largest, _set_size(os.getpid()))


def _set_size(process: int) -> int:
    """Return the proportional set size of a process and all below it; 0 where one has ended."""
    found = 0
    try:
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                found = int(line.split()[1]) * 1024
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return found
    return found + sum(_set_size(int(child)) for child in children)


def measure(folder: Path, way: str) -> dict[str, float]:
    """Walk one epoch in this process."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        subject = Subject(folder, Path(scratch))
        memory = MemoryWatch()
        begun, cpu = time.perf_counter(), _cpu_seconds()
        batches = subject.batches(way, 0)
        next(batches)
        first = time.perf_counter()
        rows = 0
        for batch in batches:
            rows += len(batch["label"])
            if time.perf_counter() - first > MOST_SECONDS:
                break
        done = time.perf_counter()
        del batches
        found = {"first": first - begun, "rate": rows / (done - first), "memory": memory.stop()}
    return found | {"cpu": (_cpu_seconds() - cpu) / rows * 1e6}


def measure_resume(folder: Path, way: str) -> dict[str, float]:
    """Wait for the first batch at 80% of an epoch."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        subject = Subject(folder, Path(scratch))
        begun = time.perf_counter()
        next(subject.batches(way, int(subject.rows // BATCH * RESUMED_AT)))
        return {"resume": time.perf_counter() - begun}


def _cpu_seconds() -> float:
    own, ended = (
        resource.getrusage(resource.RUSAGE_SELF),
        resource.getrusage(resource.RUSAGE_CHILDREN),
    )
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime


def run_alone(folder: Path, way: str, part: str, mds: str) -> dict[str, float]:
    """Measure in a process of its own."""
    path = os.pathsep.join(each for each in (mds, os.environ.get("PYTHONPATH", "")) if each)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.streaming", "--part", part, way, str(folder)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{way}: {done.stderr[-2_000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1] if done.stdout else "{}")
    return found


def page(figures: dict[str, Figures], rows: int) -> str:
    """Return the table."""
    base = figures.get("streaming-1") or next(iter(figures.values()))
    lines = [
        "# Streaming rows",
        "",
        f"{rows:,} rows of 26 columns; medians; batches of {BATCH:,} rows, without a model. Ratios "
        "are to streaming with 1 process: above 1 is better for it in rate, below 1 in the others.",
        "",
        "| way | examples/s | ratio | CPU s / 10⁶ | first batch, s | at 80%, s | memory, MiB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for way, each in figures.items():
        lines.append(
            f"| {WAYS[way]} | {each.rate:,.0f} | {base.rate / each.rate:.2f} | {each.cpu:.2f} | "
            f"{each.first:.2f} | {each.resume:.2f} | {each.memory / MIB:,.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure every way in rotation."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mds", default="", help="folder in which mosaicml-streaming is installed")
    parser.add_argument("--ways", nargs="*", choices=WAYS, help="only these")
    parser.add_argument("--write", action="store_true", help="write the page of results")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        part, way, folder = arguments.part
        if part == "shards":
            write_shards(Path(folder))
            return
        found = {} if part == "resume" else measure(Path(folder), way)
        found |= {} if part == "epoch" else measure_resume(Path(folder), way)
        print(json.dumps(found))
        sys.stdout.flush()
        os._exit(0)  # loaders leave processes behind that would be waited for
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_table(folder, arguments.rows)
        ways = [way for way in arguments.ways or WAYS if arguments.mds or not way.startswith("mds")]
        if arguments.mds:
            run_alone(folder, "mds", "shards", arguments.mds)
        if "warm-0" in ways:
            run_alone(folder, "warm-0", "epoch", "")
        rounds: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for _ in range(arguments.rounds):
            for way in ways:
                if way.startswith("mds"):  # it refuses the same folder twice in a process
                    once = run_alone(folder, way, "epoch", arguments.mds)
                    once |= run_alone(folder, way, "resume", arguments.mds)
                else:
                    once = run_alone(folder, way, "both", "")
                rounds[way].append(once)
                print(
                    way,
                    {name: round(value, 3) for name, value in rounds[way][-1].items()},
                    flush=True,
                )
    figures = {
        way: Figures(
            **{name: statistics.median(each[name] for each in each_round) for name in each_round[0]}
        )
        for way, each_round in rounds.items()
    }
    text = page(figures, arguments.rows)
    print(text)
    if arguments.write:
        keep_page("streaming.md", text)


if __name__ == "__main__":
    main()
