"""What a checkpoint costs the training that takes it, beside the ways PyTorch offers.

    python -m benchmarks.checkpoint_cost [--rounds 7]

A decoder of 25 million parameters with the state of Adam (306 MB) trains in one process and in two
under FSDP, one thread each. In every round each way saves once, in an order that rotates: steps
without a save first, then the save, then steps until it is on disk. `blocked` is the time of the
call that saves; `overlapped` compares the steps during the write with those before it; `in all` is
both together. All are in units of the steps just before, so that a busy machine moves them less.
"""

import argparse
import gc
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.elastic.utils.distributed import get_free_port
from torch.distributed.fsdp import fully_shard
from typing_extensions import override

from benchmarks.record import keep_page
from perennial.contracts.data import ModelSection
from perennial.engine.checkpoints.checkpointer import Checkpointer
from perennial.engine.checkpoints.folder import Progress
from perennial.engine.config.training import TrainingSection
from perennial.engine.job import TrainingJob
from perennial.engine.world.distributed import World

WIDTH, DEPTH, HEADS, VOCABULARY = 512, 8, 8, 256
ROWS, LENGTH = 2, 128  # per process: a step of about the length that the goals were set for
CLEAN_STEPS = 4
# A checkpoint every 100 steps then costs at most one percent of the training.
BLOCKED_GOAL, IN_ALL_GOAL = 0.2, 1.0


class Decoder(nn.Module):
    """Causal transformer blocks between an embedding and its head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(DEPTH)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        logits: Tensor = self.head(hidden)
        return logits


@dataclass(frozen=True)
class Trained:
    """What is saved, by whom, and where to."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    world: World
    folder: Path


class Way(ABC):
    """One way to save."""

    name: str

    def __init__(self, trained: Trained) -> None:
        self.model, self.optimizer = trained.model, trained.optimizer
        self.world = trained.world
        self.folder = trained.folder / type(self).__name__
        self.count = 0

    def target(self) -> Path:
        """A new folder; the one before is deleted by `clear`."""
        self.count += 1
        return self.folder / str(self.count)

    @abstractmethod
    def save(self) -> None:
        """Take a checkpoint; when this returns, training may go on."""

    def is_writing(self) -> bool:
        """Whether the checkpoint is not on disk yet."""
        return False

    def clear(self) -> None:
        """Wait, then delete what was saved."""
        dist.barrier()
        if self.world.is_first:
            shutil.rmtree(self.folder, ignore_errors=True)
        dist.barrier()


class Ours(Way):
    """The engine's checkpointer: digested, committed and retired besides."""

    name = "Perennial"

    def __init__(self, trained: Trained) -> None:
        super().__init__(trained)
        job = TrainingJob(
            fingerprint="benchmark", snapshot="", training=TrainingSection(),
            model=ModelSection(name="benchmark", task="benchmark:Decoder"),
            num_processes=self.world.size, folder=str(self.folder),
        )  # fmt: skip
        self.checkpointer = Checkpointer(job, ("loss", "minimize"), self.world, job.training)
        self.checkpointer.restore(self.model, self.optimizer)

    @override
    def save(self) -> None:
        self.count += 1
        progress = Progress(step=self.count)
        self.checkpointer.save(self.model, self.optimizer, progress, {"loss": 1.0})

    @override
    def is_writing(self) -> bool:
        return self.checkpointer.is_writing

    @override
    def clear(self) -> None:
        self.checkpointer.wait()  # the one before is retired by the next


class TorchSave(Way):
    """The full state gathered to the first rank and pickled."""

    name = "torch.save"

    @override
    def save(self) -> None:
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_state_dict(self.model, self.optimizer, options=options)
        if self.world.is_first:
            target = self.target()
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.with_suffix(".tmp").open("wb") as stream:
                torch.save(state, stream)
                stream.flush()
                os.fsync(stream.fileno())
            target.with_suffix(".tmp").rename(target)
        dist.barrier()


class DistributedSave(Way):
    """PyTorch's distributed checkpoint, while training waits."""

    name = "dcp.save"

    @override
    def save(self) -> None:
        weights, moments = get_state_dict(self.model, self.optimizer)
        save({"model": weights, "optimizer": moments}, checkpoint_id=self.target())


WAYS: tuple[type[Way], ...] = (Ours, TorchSave, DistributedSave)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> float:
    """One update of the weights; returns its seconds."""
    start = time.perf_counter()
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    torch.autograd.backward(loss)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return time.perf_counter() - start


def agreed(writing: bool) -> bool:
    """Whether any rank still writes."""
    found = torch.tensor(float(writing))
    dist.all_reduce(found)
    return bool(found > 0)


def measure(way: Way, tokens: Tensor) -> dict[str, float]:
    """One save between steps, in units of a step."""
    model, optimizer = way.model, way.optimizer
    clean = statistics.median(update(model, optimizer, tokens) for _ in range(CLEAN_STEPS))
    dist.barrier()
    start = time.perf_counter()
    way.save()
    blocked = time.perf_counter() - start
    overlapped = []
    while agreed(way.is_writing()):
        overlapped.append(update(model, optimizer, tokens))
    way.clear()
    extra = sum(overlapped) - clean * len(overlapped)
    found = {"step_seconds": clean, "blocked": blocked / clean}
    found["in_all"] = (blocked + extra) / clean
    if overlapped:
        found["overlapped"] = statistics.median(overlapped) / clean
        found["overlapped_steps"] = len(overlapped)
    return found


def run_rank(rank: int, size: int, port: int, rounds: int, folder: str) -> None:
    """All rounds in one process of several; the first writes what it measured."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=size)
    world = World(rank, rank, size, torch.device("cpu"))
    torch.manual_seed(1)
    model = Decoder()
    if size > 1:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.randint(0, VOCABULARY, (ROWS, LENGTH))
    for _ in range(3):
        update(model, optimizer, tokens)
    trained = Trained(model, optimizer, world, Path(folder))
    ways = [way(trained) for way in WAYS]
    found: dict[str, list[dict[str, float]]] = {way.name: [] for way in ways}
    # The first save of each allocates its buffers, as a training's first save does; reported apart.
    for number in range(rounds + 1):
        shift = number % len(ways)
        for way in ways[shift:] + ways[:shift]:
            gc.collect()
            found[way.name].append(measure(way, tokens))
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # tearing groups and their threads down now and then aborts a finished process


def run(size: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    """The figures of a number of processes."""
    port = get_free_port()
    with tempfile.TemporaryDirectory(prefix="perennial-bench-") as folder:
        context = multiprocessing.get_context("spawn")
        ranks = [
            context.Process(target=run_rank, args=(rank, size, port, rounds, folder))
            for rank in range(size)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        content = Path(folder, "found.json").read_text()
    found: dict[str, list[dict[str, float]]] = json.loads(content)
    return found


def quartiles(values: Sequence[float]) -> str:
    """Median and quartiles as text."""
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.3f}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def table(found: dict[str, list[dict[str, float]]]) -> list[str]:
    """Rows of Markdown: one per way."""
    rows = [
        "| way | blocked | overlapped steps: slower by | number of them | in all | first save |",
        "|---|---|---|---|---|---|",
    ]
    for name, (first, *rounds) in found.items():
        cells = [
            quartiles([each[key] for each in rounds if key in each])
            for key in ("blocked", "overlapped", "overlapped_steps", "in_all")
        ]
        rows.append(f"| {name} | {' | '.join(cells)} | {first['blocked']:.3f} |")
    return rows


def verdict(found: dict[str, list[dict[str, float]]]) -> str:
    """Whether the goals are reached."""
    rounds = found[Ours.name][1:]
    blocked = statistics.median(each["blocked"] for each in rounds)
    in_all = statistics.median(each["in_all"] for each in rounds)
    is_reached = blocked <= BLOCKED_GOAL and in_all <= IN_ALL_GOAL
    return (
        f"Goals (blocked ≤ {BLOCKED_GOAL}, in all ≤ {IN_ALL_GOAL}): "
        f"{'reached' if is_reached else 'not reached'}."
    )


def processor() -> str:
    """The processor's name, where Linux tells it."""
    info = Path("/proc/cpuinfo")
    names = info.read_text().splitlines() if info.exists() else []
    found = [line.partition(": ")[2] for line in names if line.startswith("model name")]
    return f"{found[0] if found else platform.machine()}, {os.cpu_count()} cores"


def main() -> None:
    """Measure, print, and record the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    before = os.getloadavg()[0]
    lines = [
        "# Cost of a checkpoint",
        "",
        "`python -m benchmarks.checkpoint_cost`: 25.5 million parameters with the state of Adam, "
        "306 MB. Unit: a step",
        "without a save. Median (quartiles) of the rounds; what each row means is in the script.",
        "",
        f"{date.today()}, {processor()}, Python {platform.python_version()}, torch "
        f"{torch.__version__}, {rounds} rounds, load before: {before:.1f}.",
    ]
    for title, size in (("One process", 1), ("Two processes, FSDP", 2)):
        found = run(size, rounds)
        steps = [each["step_seconds"] for way in found.values() for each in way]
        lines += ["", f"## {title}", "", f"A step takes {quartiles(steps)} s. {verdict(found)}", ""]
        lines += table(found)
        print("\n".join(lines[-8:]), flush=True)
    keep_page("checkpoint_cost.md", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
