"""One accelerator: throughput, utilisation, memory plan and the stall of a checkpoint.

    python -m benchmarks.accelerator [--rounds 5] [--sequences 8] [--pictures 256] [--out FOLDER]

Takes a GPU where there is one; elsewhere the same parts run at small size on the CPU, which shows
that they run and nothing else. Every part is a process of its own, with the environment that the
engine's launcher gives. In each round every contender makes the same number of updates, in an order
that is reversed from round to round; ratios are taken within a round.

On a GPU: 70 GB of its memory (lower `--sequences` and `--pictures` where there is less), 32 GB of
the host's, and 30 GB in the folder for temporary files (`TMPDIR`).
"""

import argparse
import dataclasses
import gc
import importlib.metadata
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.memory_plan import ALLOCATOR, GOAL, peak, reset_peak
from benchmarks.throughput.by_hand import BestLoop
from benchmarks.throughput.cells import SEED, Cell, Subject, blocks_of, language
from benchmarks.throughput.contender import Contender, Place
from benchmarks.throughput.frameworks import silence
from benchmarks.throughput.perennial import CellTask, Perennial, section_of
from benchmarks.throughput.race import run
from components.contracts.memory import MemoryEstimate
from components.engine.data.encoded import EncodedSplit
from components.engine.distributed import World
from components.engine.loop import save
from components.engine.memory.footprint import Candidate, Circumstances, estimate
from components.engine.memory.plan import Activations
from components.engine.profiling.flops import flops_per_example, peak_flops
from components.engine.task import LABEL
from components.tasks.decoder import Decoder, DecoderOptions
from components.tasks.resnet import RESNETS, ResNet
from components.train_model.launchers.local import MALLOC

MFU_GOAL = 0.5
CLASSES = 1000
WARM_UP, CLEAN_STEPS, SAVES = 5, 10, 3
# Strategy, ZeRO stage and checkpointing whose plan is compared with the measured peak.
LAYOUTS = (("single", 0, "none"), ("single", 0, "full"), ("fsdp", 3, "none"))
PARTS = ("decoder", "resnet", "checkpoint", *(f"memory-{number}" for number in range(len(LAYOUTS))))
TORCHTITAN = (
    "not run: its trainer needs a GPU, and a tokenizer and data set to be fetched. Its `llama3_8b` "
    "is its smallest published decoder; `torchrun -m torchtitan.train --module llama3 --config "
    "llama3_8b` prints its own tokens/s and MFU, which counts half of the pairs of attention"
)


@dataclass(frozen=True)
class Sizes:
    """How much is trained.

    Attributes:
        decoder: The language model.
        sequences: Of an update.
        resnet: The image model.
        pixels: Of a picture's side.
        pictures: Of an update.
        steps: Updates of each contender in each round.
    """

    decoder: DecoderOptions
    sequences: int
    resnet: str
    pixels: int
    pictures: int
    steps: int

    @classmethod
    def fitting(cls, device_type: str, sequences: int | None, pictures: int | None) -> "Sizes":
        """A decoder of 1.0 billion parameters and ResNet-50 on GPUs, next to nothing elsewhere."""
        if device_type != "cuda":
            tiny = DecoderOptions(context_length=64, layers=2, heads=2, width=64)
            return cls(tiny, sequences or 2, "small", 32, pictures or 8, steps=4)
        # Heads of 128 and a hidden layer of 5,632 = 44 · 128: whole tiles of the tensor cores.
        decoder = DecoderOptions(
            vocab_size=32_768, context_length=2048, layers=17, heads=16, width=2048,
            ffn_multiplier=4.125,
        )  # fmt: skip
        return cls(decoder, sequences or 8, "resnet50", 224, pictures or 256, steps=20)

    def language(self) -> Subject:
        """Random tokens for the decoder."""
        return language(self.decoder, rows=64 * self.sequences, batch_size=self.sequences)

    def images(self) -> Subject:
        """Random pictures in the form that the reference task gives: float32, channels first."""
        random = np.random.default_rng(SEED)
        rows = 4 * self.pictures
        pixels = random.normal(size=(rows, 3, self.pixels, self.pixels)).astype(np.float32)
        labels = torch.from_numpy(random.integers(0, CLASSES, rows))
        return Subject(
            self._build_resnet, torch.from_numpy(pixels), labels, self.pictures, blocks_of,
            "image", convolves=True,
        )  # fmt: skip

    def _build_resnet(self) -> ResNet:
        return ResNet(
            RESNETS[self.resnet], 3, torch.zeros(CLASSES), dropout=0.0, channels_last=True
        )


class AutocastLoop(BestLoop):
    """The same loop without FSDP: whole float32 weights, cast by autocast."""

    name = "the same with autocast"

    def __init__(self, cell: Cell, subject: Subject, place: Place) -> None:
        super().__init__(dataclasses.replace(cell, strategy="single"), subject, place)


def decoder_cell(sizes: Sizes, **changes: Any) -> Cell:  # noqa: ANN401 (fields of a cell)
    """How the decoder is trained."""
    return Cell(
        **{
            "model": "decoder", "processes": 1, "strategy": "fsdp", "precision": "bf16",
            "steps": sizes.steps, "compiled": True, **changes,
        }
    )  # fmt: skip


def race_decoders(sizes: Sizes, rounds: int, place: Place) -> dict[str, Any]:
    """The engine beside loops written by hand, under FSDP2."""
    kinds = (Perennial, BestLoop, AutocastLoop)
    return race(decoder_cell(sizes), sizes.language(), place, kinds, rounds)


def race_images(sizes: Sizes, rounds: int, place: Place) -> dict[str, Any]:
    """The engine beside a loop written by hand, channels last."""
    cell = decoder_cell(sizes, model="resnet", strategy="single")
    return race(cell, sizes.images(), place, (Perennial, BestLoop), rounds)


def race(
    cell: Cell, subject: Subject, place: Place, kinds: Sequence[type[Contender]], rounds: int
) -> dict[str, Any]:
    """Seconds of each round, arithmetic of an update, and what the device could do in a second."""
    task = CellTask(subject, channels_last=False)
    row = {subject.input_name: subject.inputs[:1], LABEL: subject.labels[:1]}
    flops, best = flops_per_example(task, row), None
    if place.device.type == "cuda":
        best = peak_flops(torch.cuda.get_device_name(), cell.precision, allow_tf32=False)
    return {
        "times": run(cell, subject, place, kinds, rounds).times, "steps": cell.steps,
        "flops": flops and flops * subject.batch_size, "peak": best,
    }  # fmt: skip


def compare_memory(sizes: Sizes, place: Place, layout: tuple[str, int, str]) -> dict[str, Any]:
    """Plan a layout, then train under it: both peaks."""
    strategy, stage, checkpointing = layout
    settings: dict[str, Any] = {
        "memory": {"activation_checkpointing": checkpointing},
        "checkpoints": {"asynchronous": False},
    }
    if stage:
        settings["parallelism"] = {"zero_stage": stage}
    # Not compiled: plans are made for what every model can do.
    cell = decoder_cell(sizes, strategy=strategy, compiled=False, settings=settings)
    subject = sizes.language()
    planned = planned_memory(cell, subject, place, Candidate(*layout))
    gc.collect()
    before = reset_peak(place.device)
    contender = Perennial(cell, subject, place)
    contender.run(WARM_UP)
    place.finish()
    measured = peak(place.device) - before
    contender.close()
    return {"plan": planned.model_dump(mode="json"), "measured": measured}


def planned_memory(
    cell: Cell, subject: Subject, place: Place, candidate: Candidate
) -> MemoryEstimate:
    """What the engine expects, by passes over real rows."""
    section = section_of(cell, subject, place.size)
    world = World(place.rank, place.rank, place.size, place.device).arrange(section)
    around = Circumstances(section, place.size, place.device.type)
    task = CellTask(subject, channels_last=False)
    with tempfile.TemporaryDirectory(prefix="accelerator-") as folder:
        np.save(Path(folder, f"{subject.input_name}.npy"), subject.inputs.numpy())
        np.save(Path(folder, f"{LABEL}.npy"), subject.labels.numpy())
        data = EncodedSplit(Path(folder))
        activations = Activations(around, world, task, data, available=2**62)
        measured = activations.under(candidate.checkpointing).at(around.rows)
    return estimate(candidate, activations.model, measured, around)


def stall(sizes: Sizes, place: Place) -> dict[str, Any]:
    """What asynchronous checkpoints cost the updates around them; the first allocates its room."""
    contender = Perennial(decoder_cell(sizes), sizes.language(), place)
    training = contender.training

    def update() -> float:
        return seconds_of(lambda: contender.run(1), place)

    contender.choose_kernels()
    contender.run(WARM_UP)
    found = []
    for _ in range(SAVES):
        clean = statistics.median(update() for _ in range(CLEAN_STEPS))
        start = time.perf_counter()
        save(training, is_evaluated=False)
        blocked = time.perf_counter() - start
        # On a GPU the copy is queued by the save and done before the next update.
        stalled = blocked + update() - clean
        overlapped = []
        while training.checkpointer.is_writing:
            overlapped.append(update())
        training.checkpointer.wait()
        found.append(
            {
                "update": clean, "blocked": blocked, "stalled": stalled,
                "overlapped": statistics.median(overlapped) / clean if overlapped else None,
                "updates": len(overlapped), "written": time.perf_counter() - start,
            }
        )  # fmt: skip
    contender.close()
    return {"saves": found}


def seconds_of(work: Callable[[], None], place: Place) -> float:
    """Until the device has done it."""
    place.finish()
    start = time.perf_counter()
    work()
    place.finish()
    return time.perf_counter() - start


def run_part(part: str, sizes: Sizes, rounds: int) -> dict[str, Any]:
    """One part, in this process."""
    silence()
    # Else what is compiled too often is, from then on, silently not compiled at all.
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    place = Place.join()
    if part == "decoder":
        return race_decoders(sizes, rounds, place)
    if part == "resnet":
        return race_images(sizes, rounds, place)
    if part == "checkpoint":
        return stall(sizes, place)
    return compare_memory(sizes, place, LAYOUTS[int(part.removeprefix("memory-"))])


def start_part(part: str, arguments: Sequence[str], device_type: str) -> dict[str, Any]:
    """One part, in a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    is_resident = part.startswith("memory") and device_type == "cpu"
    with tempfile.TemporaryDirectory(prefix="accelerator-") as folder:
        result = Path(folder) / "result.json"
        subprocess.run(
            [
                *(sys.executable, "-m", "benchmarks.accelerator", *arguments),
                *("--part", part, "--result", str(result)),
            ],
            env={
                **os.environ, **(ALLOCATOR if is_resident else MALLOC), "OMP_NUM_THREADS": "1",
                "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            },
            check=True,
        )  # fmt: skip
        content: dict[str, Any] = json.loads(result.read_text())
        return content


def race_lines(title: str, found: dict[str, Any], unit: str, units: int) -> list[str]:
    """The table of a race.

    Args:
        title: Above it.
        found: By `race_decoders` or `race_images`.
        unit: What is counted.
        units: How many of them an update has.
    """
    walls = {name: np.array(times)[:, 0] / found["steps"] for name, times in found["times"].items()}
    lines = [
        *("", f"## {title}", ""),
        f"| contender | {unit}/s | ms per update | MFU | speed / best hand-written, by round |",
        "|---|---|---|---|---|",
    ]
    for name, seconds in walls.items():
        middle = float(np.median(seconds))
        low, ratio, high = np.quantile(walls[BestLoop.name] / seconds, [0.25, 0.5, 0.75])
        lines.append(
            f"| {name} | {units / middle:,.0f} | {middle * 1e3:.2f} | {share(found, middle)} | "
            f"{ratio:.3f} ({low:.3f} to {high:.3f}) |"
        )
    return lines


def share(found: dict[str, Any], seconds: float) -> str:
    """The utilisation, where the device's peak is known."""
    if not (found["flops"] and found["peak"]):
        return "-"
    return f"{found['flops'] / seconds / found['peak']:.1%}"


def decoder_lines(found: dict[str, Any], sizes: Sizes) -> list[str]:
    """Table, formula and verdict of the decoder."""
    options, tokens = sizes.decoder, sizes.sequences * sizes.decoder.context_length
    with torch.device("meta"):
        parameters = sum(each.numel() for each in Decoder(options).parameters())
    lines = race_lines(
        f"Decoder of {parameters / 1e6:,.1f} million parameters", found, "tokens", tokens
    )
    unneeded = 6 * options.layers * options.width * options.context_length * tokens
    lines += [
        f"| torchtitan | {TORCHTITAN} | | | |",
        "",
        f"{sizes.sequences} sequences of {options.context_length} tokens per update, bfloat16, "
        "blocks compiled, AdamW in one kernel. MFU = FLOPs of the forward and backward pass of an "
        "update / (its seconds · dense peak of the device in bfloat16). FLOPs are counted from the "
        f"operations: {found['flops'] / 1e12:.3g}e12 per update = 6 per token and parameter outside "
        "the embedding + 12 · layers · width · length per token, for attention over all pairs. "
        "Counting only the pairs that causal attention needs, MFU is "
        f"{1 - unneeded / found['flops']:.3f} times as much.",
    ]
    if not found["peak"]:
        return [*lines, f"Goal: MFU ≥ {MFU_GOAL:.0%} on an H200. Not measured here."]
    seconds = float(np.median(np.array(found["times"][Perennial.name])[:, 0])) / found["steps"]
    is_reached = found["flops"] / seconds / found["peak"] >= MFU_GOAL
    verdict = "reached" if is_reached else "not reached"
    return [*lines, f"Goal: MFU ≥ {MFU_GOAL:.0%} on an H200. Here: {verdict}."]


def memory_lines(found: Sequence[dict[str, Any]]) -> list[str]:
    """Plans beside peaks."""
    lines = [
        *("", "## Memory plan and measured peak of the decoder, not compiled", ""),
        f"| layout | planned MB | measured MB | error | within {GOAL:.0%} |",
        "|---|---|---|---|---|",
    ]
    for each in found:
        plan, measured = MemoryEstimate.model_validate(each["plan"]), each["measured"]
        error = plan.peak / measured - 1.0
        lines.append(
            f"| {plan.name} | {plan.peak / 1e6:,.1f} | {measured / 1e6:,.1f} | {error:+.1%} | "
            f"{'yes' if abs(error) <= GOAL else 'no'} |"
        )
    return lines


def checkpoint_lines(found: dict[str, Any]) -> list[str]:
    """What each save cost."""
    lines = [
        *("", "## Asynchronous checkpoint of the decoder", ""),
        "| save | blocked s | stall s | in updates | overlapped updates: slower by | number | on "
        "disk after s |",
        "|---|---|---|---|---|---|---|",
    ]
    for number, each in enumerate(found["saves"]):
        slower = "-" if each["overlapped"] is None else f"{each['overlapped']:.3f}"
        lines.append(
            f"| {number + 1}{' (allocates)' if number == 0 else ''} | {each['blocked']:.4f} | "
            f"{each['stalled']:.4f} | {each['stalled'] / each['update']:.3f} | {slower} | "
            f"{each['updates']} | {each['written']:.2f} |"
        )
    return [
        *lines,
        "",
        "Blocked: the call that saves. Stall: that and the next update, less one without a save: on "
        "a GPU the copy is queued and done before it.",
    ]


def head(device_type: str, rounds: int) -> list[str]:
    """What was measured, and what it is worth."""
    if device_type == "cuda":
        memory = torch.cuda.get_device_properties(0).total_memory / 1e9
        device, warning = f"{torch.cuda.get_device_name()}, {memory:.0f} GB", []
    else:
        device = f"CPU, {platform.machine()}, {os.cpu_count()} cores"
        warning = ["**CPU, small sizes: shows that the script runs, nothing else.**", ""]
    return [
        *("# Accelerator", "", *warning),
        f"`python -m benchmarks.accelerator`, {date.today()}: {device}, Python "
        f"{platform.python_version()}, torch {importlib.metadata.version('torch')}, {rounds} "
        "rounds; medians (quartiles).",
    ]


def main() -> None:
    """Measure all parts and write the tables, or be the process of one part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sequences", type=int, help="per update of the decoder")
    parser.add_argument("--pictures", type=int, help="per update of the ResNet")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    device_type = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = Sizes.fitting(device_type, options.sequences, options.pictures)
    if options.part:
        options.result.write_text(json.dumps(run_part(options.part, sizes, options.rounds)))
        sys.stdout.flush()
        os._exit(0)  # tearing groups and their threads down now and then aborts a finished process
    found = {part: start_part(part, sys.argv[1:], device_type) for part in PARTS}
    memory = [found[part] for part in PARTS if part.startswith("memory")]
    images = f"{sizes.resnet}, channels last, {sizes.pixels} x {sizes.pixels} pixels"
    lines = [
        *head(device_type, options.rounds),
        *decoder_lines(found["decoder"], sizes),
        *race_lines(images, found["resnet"], "images", sizes.pictures),
        *memory_lines(memory),
        *checkpoint_lines(found["checkpoint"]),
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "accelerator.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
