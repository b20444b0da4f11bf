"""The memory plan of `strategy = "auto"` beside the memory that training takes.

    python -m benchmarks.memory_plan

Every layout trains decoders, a ResNet and an MLP for a few steps in fresh processes, which also
make the plan. On a CPU a process's memory is its resident set: the peak that the kernel recorded,
reset before the model is built, less what was resident then. The allocator is set to give every
freed block of 64 KiB or more back at once, so that what is resident is what is in use. On GPUs it
is `torch.cuda.max_memory_allocated`.
"""

import argparse
import ctypes
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.elastic.utils.distributed import get_free_port
from torch.nn import functional

from benchmarks.record import keep_page
from perennial.contracts.data import TaskColumns
from perennial.contracts.memory import MemoryEstimate
from perennial.engine.config.training import TrainingSection
from perennial.engine.data.batching import BatchPlan
from perennial.engine.memory.footprint import Candidate
from perennial.engine.memory.plan import Activations, circumstances, device_name
from perennial.engine.metrics.metric import Kind
from perennial.engine.objective import both_losses, forward
from perennial.engine.optimization.optimizer import build_optimizer
from perennial.engine.parallelism.context import own_sequences
from perennial.engine.parallelism.parallelize import set_gradient_sync
from perennial.engine.parallelism.pipeline import Pipeline
from perennial.engine.task import LABEL, Batch, NoOptions, ParallelPlan, Task
from perennial.engine.worker import initial_model
from perennial.engine.world.distributed import World
from perennial.tasks.decoder import Decoder, DecoderOptions, decoder_plan
from perennial.tasks.picture_networks import RESNETS, ResNet

STEPS = 3
GOAL = 0.15
# What mallopt(3) calls M_MMAP_THRESHOLD and M_TRIM_THRESHOLD.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


class Measured(Task):
    """What all tasks have in common: rows that are made on the spot."""

    kind: Kind = "statistic"
    rows = 4096

    def gather(self, indices: NDArray[np.int64]) -> Batch:
        """Random rows, as an encoded split would give them."""
        raise NotImplementedError

    def encode(self, rows: pl.DataFrame) -> Batch:
        """As many random rows."""
        return self.gather(np.arange(len(rows)))

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """Every model has a list of them."""
        return list(model.get_submodule("blocks").children())


class Language(Measured):
    """A decoder of 17 million parameters on sequences of 256 tokens."""

    options_ = DecoderOptions(vocab_size=8192, context_length=256, layers=6, heads=6, width=384)

    def gather(self, indices: NDArray[np.int64]) -> Batch:
        """Random tokens, each to be followed by itself."""
        tokens = torch.randint(0, self.options_.vocab_size, (len(indices), 256))
        return {"tokens": tokens, LABEL: tokens}

    def build_model(self) -> nn.Module:
        """The reference decoder."""
        return Decoder(self.options_)

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        """The mean over the tokens of a sequence."""
        losses = functional.cross_entropy(
            output.flatten(0, 1), batch[LABEL].flatten(), reduction="none"
        )
        return losses.view(batch[LABEL].shape).mean(1)

    def parallel_plan(self) -> ParallelPlan:
        """The reference decoder's."""
        return decoder_plan(self.options_)


class ExpertLanguage(Language):
    """A decoder of four experts per layer."""

    options_ = Language.options_.model_copy(update={"experts": 4, "balance": 0.0})


class TiedLanguage(Language):
    """A GPT-2 of as many layers whose head is its embedding."""

    options_ = Language.options_.model_copy(update={"variant": "gpt2", "tie_embeddings": True})


class Pictures(Measured):
    """A ResNet-18 on pictures of 64 x 64."""

    def gather(self, indices: NDArray[np.int64]) -> Batch:
        """Random pictures."""
        return {
            "image": torch.randn(len(indices), 3, 64, 64),
            LABEL: torch.randint(0, 100, (len(indices),)),
        }

    def build_model(self) -> nn.Module:
        """The reference network."""
        return ResNet(RESNETS["resnet18"], 3, torch.zeros(100), dropout=0.0, channels_last=False)

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Cross-entropy."""
        return functional.cross_entropy(output, batch[LABEL], reduction="none")


class Perceptron(Measured):
    """Twelve layers of 1,024 units."""

    def gather(self, indices: NDArray[np.int64]) -> Batch:
        """Random numbers."""
        return {"x": torch.randn(len(indices), 1024), LABEL: torch.randn(len(indices))}

    def build_model(self) -> nn.Module:
        """Blocks of a matrix and an activation, and a head."""
        blocks = [nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(12)]
        return Chain(nn.ModuleList(blocks), nn.Linear(1024, 1))

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Squared errors."""
        return (output.squeeze(-1) - batch[LABEL]).square()


class Chain(nn.Module):
    """Blocks one after the other."""

    def __init__(self, blocks: nn.ModuleList, head: nn.Module) -> None:
        super().__init__()
        self.blocks = blocks
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """Through all of them."""
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.head(x)
        return result


class Layout(NamedTuple):
    """One measurement: a layout, and the passes of each update."""

    processes: int
    strategy: str
    zero_stage: int
    checkpointing: str
    passes: int
    dimensions: Mapping[str, int | str] = MappingProxyType({})


TASKS = {
    "decoder": (Language, 4),
    "decoder of experts": (ExpertLanguage, 4),
    "tied decoder": (TiedLanguage, 4),
    "resnet": (Pictures, 16),
    "mlp": (Perceptron, 1024),
}
LAYOUTS = (
    Layout(1, "single", 0, "none", 1),
    Layout(1, "single", 0, "none", 2),
    Layout(1, "single", 0, "selective", 1),
    Layout(1, "single", 0, "full", 1),
    Layout(2, "ddp", 0, "none", 1),
    Layout(2, "fsdp", 2, "none", 1),
    Layout(2, "fsdp", 3, "none", 1),
    Layout(2, "fsdp", 3, "none", 2),
    Layout(2, "fsdp", 3, "full", 1),
    Layout(2, "fsdp", 3, "none", 1, {"tensor": 2}),
    Layout(2, "fsdp", 3, "none", 1, {"tensor": 2, "sequence_parallel": True}),
    Layout(2, "fsdp", 3, "none", 1, {"context": 2}),
    Layout(2, "fsdp", 3, "none", 4, {"pipeline": 2}),
    Layout(2, "fsdp", 3, "none", 4, {"pipeline": 2, "pipeline_schedule": "gpipe"}),
    Layout(2, "fsdp", 3, "none", 4, {"pipeline": 2, "pipeline_schedule": "interleaved_1f1b"}),
    Layout(2, "fsdp", 3, "full", 4, {"pipeline": 2}),
    Layout(4, "fsdp", 3, "none", 2, {"pipeline": 2}),
    Layout(4, "fsdp", 3, "none", 4, {"pipeline": 2, "tensor": 2}),
    Layout(4, "hsdp", 3, "none", 1, {"replicas": 2}),
    Layout(2, "fsdp", 3, "none", 1, {"expert": 2}),
    Layout(4, "fsdp", 3, "none", 2, {"pipeline": 2, "expert": 2}),
)


def section_for(layout: Layout, rows: int) -> TrainingSection:
    """The settings of one measurement."""
    dimensions = dict(layout.dimensions)
    if layout.zero_stage:
        dimensions["zero_stage"] = layout.zero_stage
    values: dict[str, Any] = {
        "strategy": layout.strategy, "micro_batch_size": rows, "parallelism": dimensions,
        "memory": {"activation_checkpointing": layout.checkpointing},
        "checkpoints": {"asynchronous": False},
    }  # fmt: skip
    section = TrainingSection.model_validate(values)
    parts = section.parallelism.data_size(layout.processes)
    return section.model_copy(update={"global_batch_size": rows * layout.passes * parts})


def fits_task(layout: Layout, name: str) -> bool:
    """Whether a task can run it: dimensions are for the decoder, and that of experts for theirs."""
    if name == "decoder of experts":
        return "expert" in layout.dimensions
    is_plain = set(layout.dimensions) <= {"replicas"}
    return is_plain or (name == "decoder" and "expert" not in layout.dimensions)


def main() -> None:
    """Measure all layouts, or be one of their processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=TASKS, help="measure one model, and write no results")
    parser.add_argument("--process", nargs=3, metavar=("TASK", "LAYOUT", "RESULT"))
    arguments = parser.parse_args()
    process = arguments.process
    if process:
        run_process(process[0], LAYOUTS[int(process[1])], Path(process[2]))
        return
    lines = []
    most = torch.cuda.device_count() or 4
    for name in [arguments.only] if arguments.only else TASKS:
        for number, layout in enumerate(LAYOUTS):
            if layout.processes <= most and fits_task(layout, name):
                lines.append(measured_line(name, number))
                print(lines[-1], flush=True)
    if not arguments.only:
        write_results(lines)


def measured_line(name: str, number: int) -> str:
    """One layout in fresh processes: a row of the table."""
    layout = LAYOUTS[number]
    processes = layout.processes
    port = get_free_port()
    with tempfile.TemporaryDirectory(prefix="perennial-bench-") as folder:
        results = [Path(folder) / f"{rank}.json" for rank in range(processes)]
        running = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "benchmarks.memory_plan"),
                    *("--process", name, str(number), str(result)),
                ],
                env={
                    **os.environ, **ALLOCATOR, "OMP_NUM_THREADS": "1", "RANK": str(rank),
                    "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes),
                    "LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                },
            )
            for rank, result in enumerate(results)
        ]  # fmt: skip
        if any(process.wait() for process in running):
            raise SystemExit(f"{name} {layout} failed")
        found = [json.loads(result.read_text()) for result in results]
    planned = MemoryEstimate.model_validate(found[0]["estimate"])
    measured = max(one["measured"] for one in found)
    error = planned.peak / measured - 1.0
    dimensions = "".join(f" {key} {value}" for key, value in layout.dimensions.items())
    parts = (
        planned.weights, planned.gradients, planned.optimizer_state, planned.activations,
        planned.gathered, planned.communication, planned.update,
    )  # fmt: skip
    cells = [
        name, f"{planned.name} x {processes}{dimensions}", str(layout.passes),
        *(f"{part / 1e6:.1f}" for part in (*parts, planned.peak, measured)),
        f"{error:+.1%}", "yes" if abs(error) <= GOAL else "no",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def run_process(name: str, layout: Layout, result: Path) -> None:
    """Plan, then train a few steps; leave both figures."""
    kind, rows = TASKS[name]
    task = kind(NoOptions(), TaskColumns(label="label", features={}))
    section = section_for(layout, rows)
    world = World.join().arrange(section)
    around = circumstances(section, world)
    # The task stands in for the encoded split as well: it has rows of its own.
    activations = Activations(around, world, task, task, available=2**62)  # type: ignore[arg-type]
    candidate = Candidate(layout.strategy, layout.zero_stage, layout.checkpointing)
    planned = activations.estimate(candidate, around)
    gc.collect()
    baseline = reset_peak(world.device)
    train(task, section, world)
    measured = peak(world.device) - baseline
    result.write_text(
        json.dumps({"estimate": planned.model_dump(mode="json"), "measured": measured})
    )
    world.barrier()
    os._exit(0)


def train(task: Measured, section: TrainingSection, world: World) -> None:
    """What the engine's loop does with memory, without its bookkeeping."""
    model = initial_model(task, task, section, world)  # type: ignore[arg-type]
    plan = BatchPlan(section.global_batch_size, section.micro_batch_size, world.data_size)
    batch = task.gather(np.arange(section.micro_batch_size))
    batches = own_sequences([batch] * plan.accumulation_steps, task, world.layout)
    optimizer = build_optimizer(model, section)
    for _ in range(STEPS):
        if isinstance(model, Pipeline):
            model.add_gradients(batches, partial(both_losses, task, section=section), 1.0)
        else:
            for number, each in enumerate(batches, start=1):
                set_gradient_sync(model, enabled=number == len(batches))
                _, objective = forward(task, model, on_device(each, world.device), section)
                torch.autograd.backward(objective)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def on_device(batch: Batch, device: torch.device) -> Batch:
    """A batch's copy."""
    return {name: tensor.to(device) for name, tensor in batch.items()}


def reset_peak(device: torch.device) -> int:
    """Forget earlier peaks; returns what is in use now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def peak(device: torch.device) -> int:
    """The most that was in use since."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resident("VmHWM")


def resident(field: str) -> int:
    """A line of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def write_results(lines: list[str]) -> None:
    """The table, with where and when."""
    header = (
        "| model | layout | passes | weights | gradients | optimizer | activations | gathered | "
        "communication | update | planned peak | measured peak | error | within 15% |"
    )
    text = [
        "# Memory plan and measured peak",
        "",
        f"{date.today()}, {platform.machine()}, {device_name(torch.device('cpu'))}, Python "
        f"{platform.python_version()}, torch {torch.__version__}. MB per process; AdamW, float32, "
        f"{STEPS} steps, `python -m benchmarks.memory_plan`. Never run on a GPU."
        if not torch.cuda.is_available()
        else f"{date.today()}, {torch.cuda.get_device_name()}, Python {platform.python_version()}, "
        f"torch {torch.__version__}. MB per process; AdamW, float32, {STEPS} steps.",
        "",
        header,
        "|" + "---|" * header.count(" | ") + "---|",
        *lines,
        "",
    ]
    keep_page("memory_plan.md", "\n".join(text))


if __name__ == "__main__":
    main()
