"""Run `python -m benchmarks.scoring_memory`: does the memory of selection and gate grow with rows?

The steps select_checkpoint and evaluate_model run on a table of 90 days, each in a process of its
own for each number of scored rows: two checkpoints are compared by ROC area, and a challenger with
a champion, with a declared slice and the search for hidden ones. Memory is what the process has
beside files (`RssAnon`), looked at every millisecond: pages of files are the kernel's cache, which
it drops where a pod comes near its limit. `RssFile`, the most of files in memory, is given beside
it. Linux only.

With `--shards`, what each process holds while it loads and scores a model of 48 blocks, divided
over so many processes; and the same model as the base of an adapter.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from datetime import date
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import numpy as np
import polars as pl
import torch
from pydantic import JsonValue
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn import functional

from benchmarks.record import keep_page
from perennial.clients.tracking import open_tracking
from perennial.contracts.adapter import Adapter
from perennial.contracts.data import DataSection, Split, SplitSection
from perennial.contracts.environment import Environment
from perennial.contracts.initial_model import FOLDER, InitialModel, Origin
from perennial.contracts.section import Section
from perennial.contracts.skeleton import SkeletonReport
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import Challenger, CheckpointRecord, TrainingResult
from perennial.data.dataset import Dataset
from perennial.engine.adapters import base_names, build_adapted_model
from perennial.engine.checkpoints.folder import (
    CheckpointManifest,
    Progress,
    commit,
    partial_path,
)
from perennial.engine.evaluation.processes import Shards
from perennial.engine.export import WEIGHTS_FILE, write_weights
from perennial.engine.serving.servable import make_servable
from perennial.engine.task import LABEL, Batch, Task, load_task
from perennial.evaluate_model.step import evaluate_model_step
from perennial.gate.scoring import score_exported
from perennial.registry.model_registry import open_registry
from perennial.select_checkpoint.step import select_checkpoint_step
from perennial.snapshot_data.manifest import take_snapshot

MODEL, TASK = "rows", "perennial.tasks.tabular:TabularClassification"
OPTIONS: dict[str, JsonValue] = {"hidden": []}
CONTRACT = {
    "model": {"name": MODEL, "task": TASK, "options": OPTIONS},
    "selection": {"metric": "roc_auc", "processes": 1},
    "gate": {"metric": "roc_auc", "slices": ["carrier"]},
}
DAYS, ROWS_PER_FILE, SCORED, REST = 90, 400_000, 0.79, 0.1
STEPS = {"select_checkpoint": Split.VALIDATION, "evaluate_model": Split.TEST}
SIZES = (1_000_000, 20_000_000)
WANTED = 1.3
WIDE_TASK, WIDE_ROWS = "benchmarks.scoring_memory:WideTask", 3_000
WIDE_BLOCKS = 48
ADAPTER = Adapter(targets=("blocks.*.linear",))


class Peak:
    """The most memory of this process while it is watched, by kind, in bytes."""

    def __enter__(self) -> "Peak":
        self.bytes = {"RssAnon": 0, "RssFile": 0}
        self._look()  # on a busy machine the thread begins late
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._ended.wait(0.001):
            self._look()

    def _look(self) -> None:
        for line in Path("/proc/self/status").read_text().splitlines():
            kind, _, value = line.partition(":")
            if kind in self.bytes:
                self.bytes[kind] = max(self.bytes[kind], 1024 * int(value.split()[0]))


def write_table(folder: Path, rows: int) -> None:
    """Write 90 days of rows in order of time; `x` predicts the label, `distance` does not."""
    folder.mkdir()
    for number, start in enumerate(range(0, rows, ROWS_PER_FILE)):
        random, count = np.random.default_rng(number), min(ROWS_PER_FILE, rows - start)
        x = random.normal(size=count)
        microseconds = (start + np.arange(count)) * (DAYS * 86_400_000_000 // rows)
        pl.DataFrame(
            {
                "time": np.datetime64("2025-01-01", "us") + microseconds.astype("timedelta64[us]"),
                "x": x.astype(np.float32),
                "distance": random.gamma(2.0, 400.0, count),
                "carrier": random.choice(list("abcdefgh"), count),
                "label": (random.random(count) < 1 / (1 + np.exp(-x))).astype(np.int64),
            }
        ).write_parquet(folder / f"part-{number:04}.parquet")


def prepare(folder: Path, scored: int) -> None:
    """Leave what both steps read: snapshots, two checkpoints, a challenger and a champion."""
    write_table(folder / "data", round(scored / SCORED))
    data = DataSection(
        uri=str(folder / "data"), label="label", time="time", features=("x", "carrier"),
        meta=("distance",),
    )  # fmt: skip
    for scoring_step, split in STEPS.items():
        is_test = split == Split.TEST
        rule = SplitSection(
            validation_fraction=REST if is_test else SCORED,
            test_fraction=SCORED if is_test else REST,
        )
        snapshot = take_snapshot(data, rule)
        snapshot.write(folder / scoring_step)
    task = load_task(TASK, OPTIONS, snapshot.task_columns)
    task.fit(Dataset(snapshot).scan(Split.TRAIN).head(10_000))
    records = []
    for step, name in enumerate(("challenger", "champion"), start=1):
        torch.manual_seed(step)
        model = task.build_model()
        records.append(leave_checkpoint(folder / "checkpoints", step, model))
        Challenger(
            task=TASK, options=OPTIONS, task_state=task.state(),
            columns=task.columns, training_fingerprint="f", metric="roc_auc", direction="maximize",
            chosen_step=step, candidates=(), reason="made for the benchmark", diagnosis=(),
            weights_sha256=write_weights(model, folder / name),
        ).write(folder / name)  # fmt: skip
        make_servable(folder / name, Dataset(snapshot))
    TrainingResult(
        fingerprint="f", task=TASK, options=OPTIONS, columns=task.columns,
        task_state=task.state(), steps=len(records), world_size=1, strategy="single",
        num_parameters=1, history=(), evaluations=(), seconds=1.0, checkpoints=tuple(records),
        num_resumes=0,
    ).write(folder / "training")  # fmt: skip
    SkeletonReport(results=(), baselines={"constant": {"roc_auc": 0.5}}).write(folder / "skeleton")
    snapshot.write(folder / "champion")
    crown(folder / "champion")


def leave_checkpoint(folder: Path, step: int, model: nn.Module) -> CheckpointRecord:
    """Write a checkpoint of a model as the training does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weights = {"model": model.state_dict()}
        save(weights, checkpoint_id=partial_path(folder, step), no_dist=True)
    manifest = CheckpointManifest(
        fingerprint="f", step=step, metrics={}, files={}, progress=Progress(step=step)
    )
    uri = str(commit(folder, manifest))
    return CheckpointRecord(step=step, uri=uri, metrics={}, kept_as=("best",))


def crown(folder: Path) -> None:
    """Register an exported model, and make it champion."""
    environment, name = Environment.read(), MODEL
    tracking, registry = open_tracking(environment, name), open_registry(environment)
    tracking.log_artifacts(folder, "champion")
    registry.describe_model(name, "", {})
    version = registry.register(
        name, source=tracking.artifact_uri("champion"), run_id=tracking.run_id, fingerprint="f",
        tags={}, description="",
    )  # fmt: skip
    registry.promote(name, version.version, "")


def measure(folder: Path, step: str) -> dict[str, int]:
    """Run a step; return the most memory that it took, in bytes."""
    contract, out = json.dumps(CONTRACT), folder / f"{step}-outputs"
    out.mkdir()
    with Peak() as peak:
        if step == "select_checkpoint":
            select_checkpoint_step(
                contract=contract, snapshot=str(folder / step), training=str(folder / "training"),
                challenger=str(out / "challenger"), selection=str(out / "selection"),
                report=str(out / "report.html"),
            )  # fmt: skip
        else:
            evaluate_model_step(
                contract=contract, snapshot=str(folder / step),
                challenger=str(folder / "challenger"), skeleton=str(folder / "skeleton"),
                verdict=str(out / "verdict"), report=str(out / "report.html"),
                metrics=str(out / "metrics"),
            )  # fmt: skip
    return peak.bytes


def variables(folder: Path) -> dict[str, str]:
    """Return the environment of a step whose store and registry lie in a folder."""
    return {
        "PERENNIAL_STORE_URI": str(folder / "store"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
    }


def in_a_process(folder: Path, *arguments: str) -> str:
    """Run a part of this benchmark in a process of its own; return its last line."""
    command = [sys.executable, "-m", "benchmarks.scoring_memory", "--folder", str(folder)]
    done = subprocess.run(
        [*command, *arguments], stdout=subprocess.PIPE, text=True, check=True,
        env={**os.environ, **variables(folder)},
    )  # fmt: skip
    return (done.stdout.strip().splitlines() or [""])[-1]


def compare(sizes: tuple[int, ...]) -> str:
    """Measure every step at every size; return the page."""
    lines = ["| step | rows | memory | times the least rows | files in memory | time |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    least: dict[str, int] = {}
    for rows in sizes:
        with TemporaryDirectory(prefix="perennial-memory-") as name:
            folder = Path(name)
            alone = len(sizes) == 1  # nothing is compared: all in this process, which is sooner
            if alone:
                os.environ.update(variables(folder))
                prepare(folder, rows)
            else:
                in_a_process(folder, "--prepare", str(rows))
            for step, split in STEPS.items():
                began = time.perf_counter()
                found = (
                    measure(folder, step)
                    if alone
                    else json.loads(in_a_process(folder, "--measure", step))
                )
                seconds = time.perf_counter() - began
                own = found["RssAnon"]
                ratio = own / least.setdefault(step, own)
                count = Snapshot.read(folder / step).split_rows[split]
                lines.append(
                    f"| {step} | {count:,} | {own / 1e6:.0f} MB | {ratio:.2f} | "
                    f"{found['RssFile'] / 1e6:.0f} MB | {seconds:.0f} s |"
                )
                print(lines[-1], flush=True)
    return f"""# Memory of selection and gate

`python -m benchmarks.scoring_memory`: {" ".join((__doc__ or "").split(chr(10) * 2)[1].split())}

{date.today()}, {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()},
torch {torch.__version__}, polars {pl.__version__}. Wanted: {WANTED} times at most.

{chr(10).join(lines)}
"""


class Block(nn.Module):
    """A square matrix."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return inputs and their transformation, shape [B, width]."""
        return x + torch.tanh(self.linear(x))


class Blocks(nn.Module):
    """Blocks behind each other, as many as a large decoder has."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(width) for _ in range(WIDE_BLOCKS)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logit, shape [B]."""
        found: Tensor = self.blocks(x).mean(dim=1)
        return found


class WideOptions(Section):
    """Options of the wide model."""

    width: int
    peaks: str
    """Folder in which each process that builds the model leaves its memory, in bytes."""


class WideTask(Task):
    """Classification by the wide model, which watches the memory of its process."""

    Options = WideOptions
    kind = "binary"
    scoring_rows = 256

    def encode(self, rows: pl.DataFrame) -> Batch:
        """Return one number, repeated."""
        x = torch.from_numpy(rows["x"].to_numpy().copy())
        width = cast("WideOptions", self.options).width
        label = torch.from_numpy(rows["label"].to_numpy().copy()).float()
        return {"x": x[:, None].repeat(1, width), LABEL: label}

    def build_model(self) -> nn.Module:
        """Build the model, and watch from now on."""
        self.peak = Peak().__enter__()
        time.sleep(0.05)
        self.before = self.peak.bytes["RssAnon"]
        return Blocks(cast("WideOptions", self.options).width)

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """Return the blocks."""
        return list(cast("Blocks", model).blocks)

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the log losses, and note the most memory so far."""
        found = [self.before, self.peak.bytes["RssAnon"]]
        file = Path(cast("WideOptions", self.options).peaks) / f"{os.getpid()}.json"
        file.write_text(json.dumps(found))
        return functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")


def prepare_wide(folder: Path, width: int, rows: int, *, adapts: bool) -> int:
    """Leave a table and an exported wide model, or an adapter beside it; return its bytes."""
    write_table(folder / "data", rows)
    data = DataSection(
        uri=str(folder / "data"), label="label", time="time", features=("x",),
        meta=("distance", "carrier"),
    )  # fmt: skip
    snapshot = take_snapshot(data, SplitSection())
    snapshot.write(folder / "snapshot")
    (folder / "peaks").mkdir()
    options: dict[str, JsonValue] = {"width": width, "peaks": str(folder / "peaks")}
    model: nn.Module = Blocks(width)
    digest = write_weights(model, folder / "wide")
    weights = folder / "wide" / WEIGHTS_FILE
    size = weights.stat().st_size
    initial = None
    if adapts:
        stored = folder / "store" / FOLDER / f"{digest}.safetensors"
        stored.parent.mkdir(parents=True)
        weights.rename(stored)
        origin = Origin(source="safetensors", uri=str(folder), files={WEIGHTS_FILE: digest})
        initial = InitialModel(origin=origin, store_uri=str(folder / "store"))
        task = load_task(WIDE_TASK, options, snapshot.task_columns)
        model = build_adapted_model(task, initial, ADAPTER)
        digest = write_weights(model, folder / "wide", base_names(model, ADAPTER))
    Challenger(
        task=WIDE_TASK, options=options, task_state={}, columns=snapshot.task_columns,
        training_fingerprint="f", metric="log_loss", direction="minimize", chosen_step=1,
        candidates=(), reason="made for the benchmark", diagnosis=(),
        weights_sha256=digest, initial=initial, adapter=ADAPTER if adapts else None,
    ).write(folder / "wide")  # fmt: skip
    return size


def score_wide(folder: Path, shards: int) -> None:
    """Score the test rows as the gate does."""
    dataset = Dataset(Snapshot.read(folder / "snapshot"))
    score_exported(folder / "wide", dataset, {Split.TEST: ()}, 1, Shards(shards))


def compare_shards(numbers: Sequence[int], widths: Sequence[int], rows: int) -> str:
    """Measure each number of shards; return the page."""
    lines = ["| model | shards | process | before | at most | more |", "|---|---|---|---|---|---|"]
    for adapts, width in product((False, True), widths):
        with TemporaryDirectory(prefix="perennial-shards-") as name:
            folder = Path(name)
            size = prepare_wide(folder, width, rows, adapts=adapts)
            kind = "adapter of " * adapts + f"{size / 1e6:.0f} MB"
            for shards in numbers:
                in_a_process(folder, "--score", str(shards))
                for number, file in enumerate(sorted((folder / "peaks").iterdir())):
                    before, peak = json.loads(file.read_text())
                    lines.append(
                        f"| {kind} | {shards} | {number} | {before / 1e6:.0f} MB | "
                        f"{peak / 1e6:.0f} MB | {(peak - before) / 1e6:.0f} MB |"
                    )
                    print(lines[-1], flush=True)
                    file.unlink()
    command = f"python -m benchmarks.scoring_memory --shards {' '.join(map(str, numbers))}"
    return f"""# Memory of a model that is scored in shards

`{command}`: models of {WIDE_BLOCKS} blocks, scored on test rows by the
gate's own code. `RssAnon` of each process before it builds the model, and the most until the rows
are scored. A process that divides a model holds its shard, four copies of a gathered block (two are
FSDP's, two gloo's), and about 100 MB at any size: its process group, and the first reading of rows.
Beside an adapter, the size is its base's; importing peft adds about 90 MB to each process.

{date.today()}, {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()},
torch {torch.__version__}, gloo on the CPU.

{chr(10).join(lines)}
"""


def main() -> None:
    """Compare the sizes, or do one part in this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=SIZES)
    parser.add_argument("--write", action="store_true", help="keep the page among the results")
    parser.add_argument("--shards", type=int, nargs="+", help="divide a wide model so often")
    parser.add_argument("--width", type=int, nargs="+", default=(1024, 1536), help="of blocks")
    for hidden in ("--folder", "--prepare", "--measure", "--score"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = Path(arguments.folder or ".")
    if arguments.prepare:
        prepare(folder, int(arguments.prepare))
    elif arguments.measure:
        print(json.dumps(measure(folder, arguments.measure)))
    elif arguments.score:
        score_wide(folder, int(arguments.score))
    elif arguments.shards:
        page = compare_shards(arguments.shards, arguments.width, WIDE_ROWS)
        if arguments.write:
            keep_page("scoring_shards.md", page)
    else:
        page = compare(tuple(arguments.rows))
        if arguments.write:
            keep_page("scoring_memory.md", page)


if __name__ == "__main__":
    main()
