"""Memory plan: chooses the simplest layout that fits, for `strategy = "auto"`.

Weights, gradients, optimizer state and what sharding gathers follow from the parameters; what a
forward and backward pass holds is measured on real rows. Layouts are tried from the fastest to the
most frugal, and the first that fits is taken. Tensor, pipeline, context and expert dimensions are
the contract's: the model is divided by them before it is measured, and the process that needs most
decides.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from perennial.contracts.errors import PerennialError
from perennial.contracts.memory import MemoryEstimate, MemoryPlan
from perennial.engine.adapters import add_adapter
from perennial.engine.config.training import TrainingSection
from perennial.engine.data.encoded import EncodedRows
from perennial.engine.handover import load_decision, save_decision
from perennial.engine.job import Decision, TrainingJob
from perennial.engine.memory.footprint import (
    Candidate,
    Circumstances,
    ModelMemory,
    candidates,
    estimate,
)
from perennial.engine.memory.live import Part, PassLine, PassMemory, measure_pass
from perennial.engine.optimization.parameters import freeze
from perennial.engine.parallelism.activations import save_memory
from perennial.engine.parallelism.context import own_inputs, own_sequences
from perennial.engine.parallelism.parallelize import share_model
from perennial.engine.parallelism.pipeline import check_passes, cut, first_input, stages_of
from perennial.engine.precision import computation
from perennial.engine.reproducibility import seeded_model
from perennial.engine.task import Task, inputs_of, to_device
from perennial.engine.world.distributed import World
from perennial.engine.world.layout import Layout

logger = logging.getLogger(__name__)

# How far a plan may be from the measured peak: benchmarks/memory_plan.py, whose goal it is. What
# an allocator loses to fragmentation has to fit into the same share.
MARGIN = 0.15
# First measurements with an eighth and a quarter of the rows tell whether all of them may be tried;
# at least two, because batch normalisation refuses one.
FIRST_SHARE, FIRST_ROWS = 8, 2
RECEIVED_ROWS = 8  # whose activations come from earlier stages: tokens differ for their experts
DOUBLINGS = 10  # of the processes that advice may speak of


class PlannedMemory(Decision):
    """The layout that was chosen, and why.

    File tree: `memory_plan.json`.
    """

    file_name: ClassVar[str] = "memory_plan.json"

    plan: MemoryPlan
    processes: int = 0
    """Processes it was made for: with another number it is made again."""


def plan_strategy(job: TrainingJob, world: World, task: Task, data: EncodedRows) -> TrainingSection:
    """Return the training section with `auto` replaced by a layout; every rank calls it together.

    Raises:
        PerennialError: no layout fits.
    """
    stored = load_decision(job, PlannedMemory) if world.is_first else None
    is_ours = stored is not None and stored.processes == world.size
    plan = world.from_first(stored.plan if stored is not None and is_ours else None)
    if plan is None:
        plan = make_plan(job.training, world, task, data)
        if world.is_first:
            decision = PlannedMemory(fingerprint=job.fingerprint, plan=plan, processes=world.size)
            save_decision(job, decision)
    logger.info(plan.text())
    chosen = plan.chosen
    candidate = Candidate(chosen.strategy, chosen.zero_stage, chosen.activation_checkpointing)
    return candidate.applied(job.training)


def make_plan(section: TrainingSection, world: World, task: Task, data: EncodedRows) -> MemoryPlan:
    """Measure, then take the first layout that fits; every rank comes to the same plan.

    Raises:
        PerennialError: none fits; the error lists what would.
    """
    # The first rank's figure for all: with their own, ranks could choose different layouts.
    available = world.from_first(available_memory(world.device))
    around = circumstances(section, world)
    activations = Activations(around, world, task, data, available)
    has_blocks = bool(activations.model.blocks)
    estimates: list[MemoryEstimate] = []
    for candidate in candidates(section, world.size, has_blocks=has_blocks):
        estimates.append(activations.estimate(candidate, around))
        plan = MemoryPlan(
            device=device_name(world.device),
            available=available,
            margin=MARGIN,
            micro_batch_rows=around.batches.pass_rows,
            measured_rows=activations.measured_rows,
            estimates=tuple(estimates),
            reason=reason_for(estimates, available),
        )
        if not plan.chosen.refused and plan.chosen.peak <= plan.limit:
            return plan
    raise does_not_fit(plan, candidate, activations, around)


def circumstances(section: TrainingSection, world: World) -> Circumstances:
    """Return this process's circumstances.

    Raises:
        PerennialError: the batch does not go with the schedule of a pipeline.
    """
    stage = 0
    if section.parallelism.pipeline > 1:
        check_passes(section, world.data_size)
        stage = world.layout.place["pipeline"]
    return Circumstances(section, world.size, world.device.type, stage)


class Activations:
    """Peak bytes of forward and backward passes, measured on first use.

    Every rank measures at the same time, in its own part of the memory: a task's loss, tensor,
    context and expert dimensions use collectives.
    """

    def __init__(
        self, around: Circumstances, world: World, task: Task, data: EncodedRows, available: int
    ) -> None:
        self._world = world
        self._task = task
        self._data = data
        self._available = available
        self._section = around.section
        self._rows = min(around.batches.pass_rows, data.rows)
        self._found: dict[str, tuple[PassLine, ...]] = {}
        self.measured_rows = self._rows
        model = seeded_model(task, self._section.seed)
        add_adapter(model, self._section)
        whole = {name: value.nbytes for name, value in model.named_parameters()}
        # Twice the weights leave room for casts; else the host has the model anyway.
        is_roomy = world.from_first(2 * sum(whole.values()) <= available)
        self._device = world.device if is_roomy else torch.device("cpu")
        self._layout = self._find_layout()
        parts, experts = self._divide(model)
        self.model = ModelMemory.of(
            [part.module for part in parts],
            task,
            self._section,
            whole=whole,
            experts=experts,
            is_on_gpu=world.device.type == "cuda",
        )

    def estimate(self, candidate: Candidate, around: Circumstances) -> MemoryEstimate:
        """Return the estimate of the process that needs most."""
        measured = self.under(candidate.checkpointing, around.batches.pass_rows)
        own = estimate(candidate, self.model, measured, around)
        found = self._world.to_first(own)
        worst = max(found, key=lambda each: each.peak) if found else None
        return self._world.from_first(worst)

    def under(self, checkpointing: str, rows: int) -> tuple[PassMemory, ...]:
        """Return what a pass of so many rows takes, through each part of the model that is here."""
        if checkpointing not in self._found:
            self._found[checkpointing] = self._measure(checkpointing)
        return tuple(line.at(rows) for line in self._found[checkpointing])

    def _measure(self, checkpointing: str) -> tuple[PassLine, ...]:
        """Measure passes with few rows and with all, or with more where all would not fit."""
        section = self._measured_section(checkpointing)
        model = seeded_model(self._task, section.seed)
        add_adapter(model, section)
        parts, _ = self._divide(model)
        for part in parts:
            save_memory(part.module, self._task, section, self._device)
        count = min(max(self._rows // FIRST_SHARE, FIRST_ROWS), max(self._data.rows // 2, 1))
        few, more = (
            [self._pass(part, section, rows) for part in parts] for rows in (count, 2 * count)
        )
        lines = list(map(PassLine, few, more))
        expected = max(line.at(self._rows).activations for line in lines) + self.model.weights()
        # Every rank goes the same way, for collectives.
        if self._world.from_first(expected <= self._available) and self._rows > count:
            lines = [
                PassLine(line.fewer, self._pass(part, section, self._rows))
                for line, part in zip(lines, parts, strict=True)
            ]
        self.measured_rows = lines[0].more.rows
        return tuple(lines)

    def _pass(self, part: Part, section: TrainingSection, rows: int) -> PassMemory:
        batch = self._data.gather(np.arange(rows))
        if self._layout is not None:
            (batch,) = own_sequences([batch], self._task, self._layout)
        return measure_pass(part, self._task, to_device(batch, self._device), section)

    def _find_layout(self) -> Layout | None:
        degrees = self._section.parallelism
        if not degrees.changed("tensor", "pipeline", "context", "expert"):
            return None
        if self._device == self._world.device:
            return self._world.layout
        return Layout.of(self._section, self._world.size, self._device)

    def _divide(self, model: nn.Module) -> tuple[list[Part], Sequence[nn.Module]]:
        """Return what this process computes, on the device, and the modules of divided experts."""
        # What is frozen for good; of stages, the one that trains most decides.
        freeze(model, self._section.model_copy(update={"stages": ()}))
        if self._layout is None:
            return [Part(model.to(self._device))], ()
        task, degrees = self._task, self._section.parallelism
        stages = stages_of(model, task, degrees) if degrees.pipeline > 1 else {}
        experts = share_model(model, task, self._section, self._layout)
        model.to(self._device)
        if not stages:
            return [Part(model)], experts
        here = range(self._layout.place["pipeline"], max(stages.values()) + 1, degrees.pipeline)
        some = np.arange(min(self._rows, RECEIVED_ROWS))
        inputs = own_inputs(inputs_of(self._data.gather(some)), task, self._layout)
        inputs, first = to_device(inputs, self._device), first_input(model)
        parts = []
        with torch.no_grad():
            for stage in range(max(here) + 1):
                module = cut(model, stages, (stage,))
                if stage in here:
                    received = inputs[first] if stage else None
                    parts.append(Part(module, received, has_loss=stage == max(stages.values())))
                with computation(self._measured_section("none"), self._device):
                    inputs = {**inputs, first: module(**inputs)}
        return parts, experts

    def _measured_section(self, checkpointing: str) -> TrainingSection:
        """Return the section of one process, whose short types come by autocast."""
        memory = self._section.memory
        offloads = memory.activation_offload and self._device.type == self._world.device.type
        changes = {"activation_checkpointing": checkpointing, "activation_offload": offloads}
        return self._section.model_copy(
            update={"strategy": "single", "memory": memory.model_copy(update=changes)}
        )


def reason_for(estimates: list[MemoryEstimate], available: int) -> str:
    """Explain in a sentence why this layout was chosen."""
    *others, last = estimates
    limit = available * (1.0 - MARGIN)
    fits = (
        f"{last.name}: its peak of {last.peak / 1e6:,.0f} MB fits in {limit / 1e6:,.0f} MB, the "
        f"{available / 1e6:,.0f} MB available to each process less {MARGIN:.0%}"
    )
    if not others:
        return f"{fits}; it is the simplest layout"
    reasons = [
        f"{other.name} cannot run ({other.refused})"
        if other.refused
        else f"{other.name} needs {other.peak / 1e6:,.0f} MB"
        for other in others
    ]
    return f"{fits}; {', '.join(reasons)}"


def does_not_fit(
    plan: MemoryPlan, last: Candidate, activations: Activations, around: Circumstances
) -> PerennialError:
    """Return the error with the memory options that would fit; every rank calls it together."""

    def fits(other: Circumstances) -> bool:
        return activations.estimate(last, other).peak <= plan.limit

    section, advice = around.section, []
    doublings = DOUBLINGS if last.is_sharded else 0
    for processes in (around.processes << doubling for doubling in range(1, doublings + 1)):
        if fits(replace(around, processes=processes)):
            advice.append(f"resources.num_processes = {processes} with as much memory for each")
            break
    most = around.batches.pass_rows
    for rows in (most >> halving for halving in range(1, most.bit_length())):
        smaller = section.model_copy(update={"micro_batch_size": rows})
        if fits(replace(around, section=smaller)):
            advice.append(f"training.micro_batch_size = {rows}")
            break
    if around.device_type == "cuda" and not section.memory.parameter_offload:
        advice.append("training.memory.parameter_offload = true")
    return PerennialError(
        f"training.strategy = 'auto' found no layout that fits in {plan.limit / 1e6:,.0f} MB per "
        "process",
        evidence=plan.model_copy(update={"reason": ""}).text().strip(),
        action="set " + " or ".join(advice) if advice else "use a smaller model or more memory",
    )


def stored_plan(job: TrainingJob) -> MemoryPlan | None:
    """Load an earlier attempt's plan; None without one, or if the strategy is not `auto`."""
    if job.training.strategy != "auto":
        return None
    stored = load_decision(job, PlannedMemory)
    return stored.plan if stored else None


CONTROL_GROUPS = Path("/sys/fs/cgroup")
MEMORY_INFO = Path("/proc/meminfo")


def available_memory(device: torch.device, environment: Mapping[str, str] = os.environ) -> int:
    """Return the device's free bytes; the host's are divided by its training processes."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    return host_memory() // int(environment.get("LOCAL_WORLD_SIZE", "1"))


def device_name(device: torch.device) -> str:
    """Return the device's name for messages."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU's memory"


def host_memory(groups: Path = CONTROL_GROUPS, info: Path = MEMORY_INFO) -> int:
    """Return the bytes that may still be allocated, within host memory and container limit."""
    fields = dict(line.split(":") for line in info.read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    for limit, usage, inactive in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        if not (groups / limit).exists():
            continue
        text = (groups / limit).read_text().strip()
        if text == "max":
            continue
        statistics = dict(
            line.split()
            for line in (groups / usage).with_name("memory.stat").read_text().splitlines()
        )
        # The kernel frees cached files when memory runs short.
        used = int((groups / usage).read_text()) - int(statistics[inactive])
        available = min(available, int(text) - used)
    return max(available, 0)
