"""Parts: what is measured, each in a process of its own."""

import dataclasses
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from benchmarks.accelerator.sizes import Sizes
from benchmarks.memory_plan import peak, reset_peak
from benchmarks.throughput.by_hand import BestLoop
from benchmarks.throughput.cells import Cell, Subject
from benchmarks.throughput.contender import Contender, Place
from benchmarks.throughput.frameworks import silence
from benchmarks.throughput.perennial import Perennial, cell_task, section_of
from benchmarks.throughput.race import run
from perennial.contracts.memory import MemoryEstimate
from perennial.engine.data.encoded import EncodedSplit
from perennial.engine.loop.train import save
from perennial.engine.memory.footprint import Candidate
from perennial.engine.memory.plan import Activations, circumstances
from perennial.engine.profiling.flops import flops_per_example, peak_flops
from perennial.engine.task import LABEL
from perennial.engine.world.distributed import World

WARM_UP, CLEAN_STEPS, SAVES = 5, 10, 3
Layout = Literal["single", "fsdp"]
# Strategy, ZeRO stage and checkpointing whose plan is compared with the measured peak.
LAYOUTS: tuple[tuple[Layout, int, str], ...] = (
    ("single", 0, "none"),
    ("single", 0, "full"),
    ("fsdp", 3, "none"),
)
PARTS = ("decoder", "resnet", "checkpoint", *(f"memory-{number}" for number in range(len(LAYOUTS))))


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


class AutocastLoop(BestLoop):
    """The same loop without FSDP: whole float32 weights, cast by autocast."""

    name = "the same with autocast"

    def __init__(self, cell: Cell, subject: Subject, place: Place) -> None:
        super().__init__(dataclasses.replace(cell, strategy="single"), subject, place)


def decoder_cell(sizes: Sizes) -> Cell:
    """How the decoder is trained."""
    return Cell("decoder", 1, "fsdp", "bf16", sizes.steps, compiled=True)


def race_decoders(sizes: Sizes, rounds: int, place: Place) -> dict[str, Any]:
    """The engine beside loops written by hand, under FSDP2."""
    kinds = (Perennial, BestLoop, AutocastLoop)
    return race(decoder_cell(sizes), sizes.language(), place, kinds, rounds)


def race_images(sizes: Sizes, rounds: int, place: Place) -> dict[str, Any]:
    """The engine beside a loop written by hand, channels last."""
    cell = dataclasses.replace(decoder_cell(sizes), model="resnet", strategy="single")
    return race(cell, sizes.images(), place, (Perennial, BestLoop), rounds)


def race(
    cell: Cell, subject: Subject, place: Place, kinds: Sequence[type[Contender]], rounds: int
) -> dict[str, Any]:
    """Seconds of each round, arithmetic of an update, and what the device could do in a second."""
    task = cell_task(subject, channels_last=False)
    row = {subject.input_name: subject.inputs[:1], LABEL: subject.labels[:1]}
    flops, best = flops_per_example(task, row), None
    if place.device.type == "cuda":
        best = peak_flops(torch.cuda.get_device_name(), cell.precision, allow_tf32=False)
    return {
        "times": run(cell, subject, place, kinds, rounds).times, "steps": cell.steps,
        "flops": flops and flops * subject.batch_size, "peak": best,
    }  # fmt: skip


def compare_memory(sizes: Sizes, place: Place, layout: tuple[Layout, int, str]) -> dict[str, Any]:
    """Plan a layout, then train under it: both peaks."""
    strategy, stage, checkpointing = layout
    settings: dict[str, Any] = {
        "memory": {"activation_checkpointing": checkpointing},
        "checkpoints": {"asynchronous": False},
    }
    if stage:
        settings["parallelism"] = {"zero_stage": stage}
    # Not compiled: plans are made for what every model can do.
    cell = dataclasses.replace(
        decoder_cell(sizes), strategy=strategy, compiled=False, settings=settings
    )
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
    around = circumstances(section, world)
    task = cell_task(subject, channels_last=False)
    with tempfile.TemporaryDirectory(prefix="accelerator-") as folder:
        np.save(Path(folder, f"{subject.input_name}.npy"), subject.inputs.numpy())
        np.save(Path(folder, f"{LABEL}.npy"), subject.labels.numpy())
        data = EncodedSplit(Path(folder))
        activations = Activations(around, world, task, data, available=2**62)
        return activations.estimate(candidate, around)


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
        contender.run(1)
        place.finish()
        stalled = time.perf_counter() - start - clean
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
