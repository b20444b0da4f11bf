"""Memory plan: chooses the simplest layout that fits, for `strategy = "auto"`.

Weights, gradients, optimizer state and what sharding gathers follow from the parameters; what a
forward and backward pass holds is measured on real rows. Layouts are tried from the fastest to the
most frugal, and the first that fits is taken.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from perennial.contracts.errors import PerennialError
from perennial.contracts.memory import MemoryEstimate, MemoryPlan
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
from perennial.engine.memory.live import PassLine, PassMemory, measure_pass
from perennial.engine.parallelism.activations import save_memory
from perennial.engine.reproducibility import seeded_model
from perennial.engine.task import Task, to_device
from perennial.engine.world.distributed import World

logger = logging.getLogger(__name__)

# How far a plan may be from the measured peak: benchmarks/memory_plan.py, whose goal it is. What
# an allocator loses to fragmentation has to fit into the same share.
MARGIN = 0.15
# First measurements with an eighth and a quarter of the rows tell whether all of them may be tried;
# at least two, because batch normalisation refuses one.
FIRST_SHARE, FIRST_ROWS = 8, 2
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
    available = world.from_first(available_memory(world.device))
    around = Circumstances(section, world.size, world.device.type)
    activations = Activations(around, world, task, data, available)
    model = activations.model
    estimates: list[MemoryEstimate] = []
    for candidate in candidates(section, world.size, has_blocks=bool(model.blocks)):
        measured = activations.under(candidate.checkpointing)
        estimates.append(estimate(candidate, model, measured.at(around.rows), around))
        plan = MemoryPlan(
            device=device_name(world.device),
            available=available,
            margin=MARGIN,
            micro_batch_rows=around.rows,
            measured_rows=activations.measured_rows,
            estimates=tuple(estimates),
            reason=reason_for(estimates, available),
        )
        if not plan.chosen.refused and plan.chosen.peak <= plan.limit:
            return plan
    raise does_not_fit(plan, candidate, model, measured, around)


class Activations:
    """Peak bytes of forward and backward passes, measured on first use.

    Every rank measures at the same time, in its own part of the memory: a task's loss may use
    collectives. The first rank's figures are taken.

    Args:
        around: How many rows a pass has.
        world: All ranks.
        task: Its model and loss.
        data: Rows to measure with.
        available: Bytes that one process may use.
    """

    def __init__(
        self, around: Circumstances, world: World, task: Task, data: EncodedRows, available: int
    ) -> None:
        self._world = world
        self._task = task
        self._data = data
        self._available = available
        self._section = around.section
        self._rows = min(around.rows, data.rows)
        self._found: dict[str, PassLine] = {}
        self.measured_rows = self._rows
        model = seeded_model(task, self._section.seed)
        is_on_gpu = world.device.type == "cuda"
        self.model = ModelMemory.of(model, task, self._section, is_on_gpu=is_on_gpu)

    def under(self, checkpointing: str) -> PassLine:
        """Passes with few rows and with all, or with more where all would not fit."""
        if checkpointing not in self._found:
            self._found[checkpointing] = self._world.from_first(self._measure(checkpointing))
        return self._found[checkpointing]

    def _measure(self, checkpointing: str) -> PassLine:
        # Twice the weights leave room for casts; else the host has the model anyway.
        is_roomy = 2 * self.model.weights <= self._available
        device = self._world.device if is_roomy else torch.device("cpu")
        section = self._measured_section(checkpointing, device)
        model = seeded_model(self._task, section.seed).to(device)
        save_memory(model, self._task, section, device)
        count = min(max(self._rows // FIRST_SHARE, FIRST_ROWS), max(self._data.rows // 2, 1))
        line = PassLine(*(self._pass(model, section, rows) for rows in (count, 2 * count)))
        expected = line.at(self._rows).activations + self.model.weights
        # Every rank goes the same way, for the task's collectives.
        if self._world.from_first(expected <= self._available) and self._rows > count:
            line = PassLine(line.fewer, self._pass(model, section, self._rows))
        self.measured_rows = line.more.rows
        return line

    def _pass(self, model: nn.Module, section: TrainingSection, rows: int) -> PassMemory:
        device = next(model.parameters()).device
        batch = self._data.gather(np.arange(rows))
        return measure_pass(model, self._task, to_device(batch, device), section)

    def _measured_section(self, checkpointing: str, device: torch.device) -> TrainingSection:
        """Alone, so that short types come by autocast; offloading is what GPUs do."""
        memory = self._section.memory
        offloads = memory.activation_offload and device.type == self._world.device.type
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
    plan: MemoryPlan,
    last: Candidate,
    model: ModelMemory,
    measured: PassLine,
    around: Circumstances,
) -> PerennialError:
    """Return the error with the memory options that would fit."""

    def fits(other: Circumstances) -> bool:
        return estimate(last, model, measured.at(other.rows), other).peak <= plan.limit

    section, advice = around.section, []
    doublings = DOUBLINGS if last.is_sharded else 0
    for processes in (around.processes << doubling for doubling in range(1, doublings + 1)):
        if fits(replace(around, processes=processes)):
            advice.append(f"resources.num_processes = {processes} with as much memory for each")
            break
    for rows in (around.rows >> halving for halving in range(1, around.rows.bit_length())):
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
