"""Footprint: peak bytes of one process under a layout, the optimizer's update included."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from perennial.contracts.adapter import FULL_BITS
from perennial.contracts.memory import MemoryEstimate
from perennial.engine.config.optimization import Adam, AdamW, AdamW8bit, Optimizer, Sgd
from perennial.engine.config.training import TrainingSection
from perennial.engine.data.batching import BatchPlan
from perennial.engine.low_bits import low_bit_layers
from perennial.engine.memory.live import LiveMemory, PassMemory
from perennial.engine.optimization.optimizer import algorithm, parameter_groups
from perennial.engine.optimization.parameters import local
from perennial.engine.parallelism.pipeline import passes_in_flight
from perennial.engine.precision import COMPUTE_DTYPES
from perennial.engine.task import Task

CHECKPOINTING = ("none", "selective", "full")


# torchao keeps one float32 scale for each block of so many 8-bit values; smaller tensors, and those
# that blocks do not fill, stay in float32.
BLOCK_SIZE = 256
SMALLEST_QUANTISED = 4096


@dataclass(frozen=True)
class UpdateMemory:
    """The bytes of an update: the state, and what a step needs beside it at its worst moment."""

    state: int
    temporary: int

    @classmethod
    def of(cls, groups: Sequence[dict[str, Any]], settings: Optimizer, *, is_on_gpu: bool) -> Self:
        """Measure two steps on tensors that have shapes and no values: nothing is computed."""
        if isinstance(settings, AdamW8bit):
            return cls(*_of_8_bit([value for group in groups for value in group["params"]]))
        is_fused = _is_fused(settings, is_on_gpu=is_on_gpu)
        if is_fused:  # kernels that exist for real devices only; they keep the same state
            settings = settings.model_copy(update={"implementation": "foreach"})
        kind, arguments = algorithm(settings, is_on_gpu=False)
        values = [_without_values(group) for group in groups]
        optimizer = kind(values, **{"lr": settings.learning_rate, **arguments})
        optimizer.step()
        states = (value for state in optimizer.state.values() for value in state.values())
        state = sum(value.nbytes for value in states if isinstance(value, Tensor))
        with LiveMemory(torch.device("meta"), []) as memory:
            optimizer.step()
        return cls(state, 0 if is_fused else memory.peak)


def _is_fused(settings: Optimizer, *, is_on_gpu: bool) -> bool:
    if isinstance(settings, AdamW | Adam):
        is_chosen = settings.implementation == "auto" and is_on_gpu
        return is_chosen or settings.implementation == "fused"
    return isinstance(settings, Sgd) and settings.implementation == "fused"


def _without_values(group: dict[str, Any]) -> dict[str, Any]:
    parameters = [
        nn.Parameter(torch.empty_like(parameter, device="meta")) for parameter in group["params"]
    ]
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    return {**group, "params": parameters}


def _of_8_bit(parameters: Sequence[Tensor]) -> tuple[int, int]:
    """Compute what compiled kernels take; the moments of one tensor at a time are float32."""
    state = largest = 0
    for parameter in parameters:
        count = parameter.numel()
        largest = max(largest, count)
        is_quantised = count >= SMALLEST_QUANTISED and count % BLOCK_SIZE == 0
        state += 2 * (count + count // BLOCK_SIZE * 4 if is_quantised else 4 * count)
    return state, 2 * 4 * largest


@dataclass(frozen=True)
class Weight:
    """A parameter as a process has it before it is sharded.

    Attributes:
        value: Its shape and type, on the meta device.
        expert: The processes that divide the experts of a layer, over which it is not sharded.
    """

    value: Tensor
    expert: int = 1

    def shard(self, shards: int) -> Tensor:
        """Return a process's part: FSDP divides the first dimension and rounds up."""
        if self.value.ndim == 0:
            return self.value
        return self.value[: share(len(self.value), max(1, shards // self.expert))]


@dataclass(frozen=True)
class ModelMemory:
    """The bytes of what a process holds of a model before it is sharded.

    Attributes:
        whole: All parameters of the whole model.
        buffers: Running statistics and constants.
        groups: The parameters that get gradients, grouped as the optimizer has them: `params` are
            of the class `Weight`.
        blocks: Each of the task's blocks.
        unquantized: What the weights of few bits take more while they are loaded, in float32.
    """

    whole: int
    buffers: int
    groups: tuple[dict[str, Any], ...]
    frozen: tuple[Weight, ...]
    blocks: tuple[int, ...]
    section: TrainingSection
    is_on_gpu: bool
    unquantized: int = 0

    @classmethod
    def of(
        cls,
        parts: Sequence[nn.Module],
        task: Task,
        section: TrainingSection,
        *,
        whole: dict[str, int],
        experts: Collection[nn.Module] = (),
        is_on_gpu: bool,
    ) -> Self:
        """Measure a model, or the stages of it that a process has."""
        divided = {id(weight) for module in experts for weight in module.parameters(recurse=False)}

        def weight(parameter: nn.Parameter) -> Weight:
            own, expert = local(parameter), section.parallelism.expert
            value = torch.empty(own.shape, dtype=own.dtype, device="meta")
            return Weight(value, expert if id(parameter) in divided else 1)

        held = nn.ModuleList(parts)
        parameters = list(held.parameters())
        return cls(
            whole=sum(whole.values()),
            buffers=sum(buffer.nbytes for buffer in held.buffers()),
            groups=tuple(
                {**group, "params": list(map(weight, group["params"]))}
                for part in parts
                for group in parameter_groups(part, section.optimizer, whole)
            ),
            frozen=tuple(weight(each) for each in parameters if not each.requires_grad),
            blocks=tuple(
                sum(local(parameter).nbytes for parameter in block.parameters())
                for part in parts
                for block in task.blocks(part)
            ),
            section=section,
            is_on_gpu=is_on_gpu,
            unquantized=sum(
                FULL_BITS // 8 * each.in_features * each.out_features
                - each.codes.nbytes
                - each.scales.nbytes
                for each in low_bit_layers(held)
            ),
        )

    def trainable(self, shards: int = 1) -> int:
        """Return a process's bytes of the parameters that get gradients."""
        weights = (weight for group in self.groups for weight in group["params"])
        return sum(weight.shard(shards).nbytes for weight in weights)

    def weights(self, shards: int = 1) -> int:
        """Return a process's bytes of all parameters."""
        frozen = sum(weight.shard(shards).nbytes for weight in self.frozen)
        return frozen + self.trainable(shards)

    def update(self, shards: int) -> UpdateMemory:
        """Return what the optimizer keeps and needs for a process's part."""
        groups = [
            {**group, "params": [weight.shard(shards) for weight in group["params"]]}
            for group in self.groups
        ]
        return UpdateMemory.of(groups, self.section.optimizer, is_on_gpu=self.is_on_gpu)

    @property
    def outside(self) -> int:
        """Return the bytes of weights that belong to no block."""
        return self.weights() - sum(self.blocks)


@dataclass(frozen=True)
class Candidate:
    """A candidate layout."""

    strategy: str
    zero_stage: int
    checkpointing: str

    @property
    def is_sharded(self) -> bool:
        """Whether processes share one copy of the state."""
        return self.strategy in ("fsdp", "hsdp")

    def applied(self, section: TrainingSection) -> TrainingSection:
        """Return the training section with this layout.

        Raises:
            ValueError: an option of the section does not go together with it.
        """
        values = section.model_dump()
        values["strategy"] = self.strategy
        values["memory"]["activation_checkpointing"] = self.checkpointing
        if self.is_sharded:
            values["parallelism"]["zero_stage"] = self.zero_stage
        return TrainingSection.model_validate(values)


@dataclass(frozen=True)
class Circumstances:
    """Inputs of an estimate besides model and layout; `stage` is the place in a pipeline."""

    section: TrainingSection
    processes: int
    device_type: str
    stage: int = 0

    @property
    def shards(self) -> int:
        """Return over how many processes weights are sharded."""
        degrees = self.section.parallelism
        return self.processes // (degrees.pipeline * degrees.tensor * degrees.replicas)

    @property
    def batches(self) -> BatchPlan:
        """Return how a global batch is divided."""
        section = self.section
        parts = section.parallelism.data_size(self.processes)
        return BatchPlan(section.global_batch_size, section.micro_batch_size, parts)

    @property
    def is_pipeline(self) -> bool:
        """Whether processes hold different blocks."""
        return self.section.parallelism.pipeline > 1

    @property
    def is_accumulating(self) -> bool:
        """Whether gradients of earlier passes are there while activations are.

        A pipeline reduces them at the end of an update only.
        """
        return self.is_pipeline or self.batches.accumulation_steps > 1


def estimate(
    candidate: Candidate,
    model: ModelMemory,
    measured: Sequence[PassMemory],
    around: Circumstances,
) -> MemoryEstimate:
    """Estimate one process's memory under a layout."""
    section, shards = around.section, around.shards if candidate.is_sharded else 1
    gathered = buckets = block_gradients = 0
    # While gradients accumulate they are not reduced, and so not sharded either.
    gradients = model.trainable(1 if around.is_accumulating else shards)
    if candidate.is_sharded:
        gathered = gathered_weights(candidate, model, measured, around)
        block_gradients = unreduced_gradients(model, section, around.is_accumulating)
    elif candidate.strategy == "ddp":
        buckets = model.trainable()
    weights = model.weights(shards)
    update = model.update(shards)
    optimizer = update.state
    if around.is_pipeline:
        activations = activations_in_flight(measured, around)
        # Its first update tries a micro-batch out, which stays; there is no optimizer state yet.
        activations += max(0, max(each.kept for each in measured) - optimizer)
    else:
        activations = activations_of_pass(candidate, measured[0], around, gradients)
    averaged = model.trainable(shards) if section.averaging else 0
    staging = 0
    if section.checkpoints.asynchronous and around.device_type == "cpu":
        own = model.trainable(shards) if section.adapter else weights  # of a checkpoint
        staging = own + optimizer + averaged
    if section.memory.parameter_offload and around.device_type != "cpu":
        weights = gradients = optimizer = averaged = 0
    exchanged = around.batches.accumulation_steps * sum(each.exchanged for each in measured)
    loading = loading_peak(candidate, model, weights, around)
    # A pass and the optimizer's update are never at the same time, and loading comes before both:
    # the peak is the largest of the three.
    kept = model.buffers + weights + gradients + optimizer + averaged + buckets + staging
    kept += exchanged
    return MemoryEstimate(
        strategy=candidate.strategy,
        zero_stage=candidate.zero_stage,
        activation_checkpointing=candidate.checkpointing,
        weights=model.buffers + weights,
        gradients=gradients,
        optimizer_state=optimizer,
        averaged_weights=averaged,
        activations=activations,
        gathered=gathered,
        communication=buckets + block_gradients + exchanged,
        update=update.temporary,
        staging=staging,
        loading=loading,
        peak=max(kept + max(activations + gathered + block_gradients, update.temporary), loading),
        refused=refusal(candidate, section),
    )


def activations_of_pass(
    candidate: Candidate, measured: PassMemory, around: Circumstances, gradients: int
) -> int:
    """Return the most that one pass takes beside weights and so many bytes of gradients."""
    found = measured.activations
    if not around.is_accumulating:
        # Gradients come as activations go. The worst moment with a part of them is no worse than on
        # the line between that without and that with all: a maximum of linear functions.
        shards = around.shards if candidate.is_sharded else 1
        growth = share(measured.with_gradients - measured.activations, shards)
        least = measured.with_outside if candidate.is_sharded else measured.activations
        found = max(least + growth - gradients, 0)
    return found if candidate.is_sharded else found + measured.weight_casts


def activations_in_flight(measured: Sequence[PassMemory], around: Circumstances) -> int:
    """Return the most that the micro-batches of a pipeline take, when one of them turns back.

    All rows of an update are on the device, and the model's inputs once more, in one tensor.
    """
    passes = around.batches.accumulation_steps
    most = 0
    for counts, turning in passes_in_flight(around.section.parallelism, around.stage, passes):
        kept = sum(count * each.kept for count, each in zip(counts, measured, strict=True))
        turn = measured[turning]
        most = max(most, kept - turn.kept + turn.activations - turn.batch)
    return most + passes * (measured[0].batch + measured[0].inputs)


def share(size: int, shards: int) -> int:
    """Return one process's part."""
    return -(-size // shards)


def loading_peak(
    candidate: Candidate, model: ModelMemory, weights: int, around: Circumstances
) -> int:
    """Return the most while the initial model becomes what is kept of it, module by module.

    On a GPU the module that is being sharded is there as a whole, beside the shards; on the host
    all modules that are still to be sharded are. Weights are quantized on the host.
    """
    unquantized = model.unquantized if around.device_type == "cpu" else 0
    if not candidate.is_sharded:
        return model.buffers + model.weights() + unquantized
    largest = max(model.outside, *model.blocks, 0)
    if around.device_type == "cpu":
        return model.buffers + model.whole + max(share(largest, around.shards), unquantized)
    if around.section.parallelism.tensor > 1 or around.section.parallelism.expert > 1:
        return model.buffers + model.weights() + weights  # all are divided before any is sharded
    return model.buffers + weights + largest


def gathered_weights(
    candidate: Candidate,
    model: ModelMemory,
    measured: Sequence[PassMemory],
    around: Circumstances,
) -> int:
    """Return the bytes of gathered weights; those outside the blocks stay for the whole pass.

    Of the blocks there are two under ZeRO 3: the one that computes, and the next, on its way. In a
    pipeline all stay between the backward passes of an update, when a micro-batch is gone.
    """
    adapter, scale = around.section.adapter, COMPUTE_DTYPES[around.section.precision].itemsize / 4
    if adapter is not None and adapter.base_bits < FULL_BITS:
        scale = 1.0  # bytes are gathered as they are, and little else is
    everything = int((model.outside + sum(model.blocks)) * scale)
    if candidate.zero_stage == 2:
        return everything
    two = int((model.outside + sum(sorted(model.blocks)[-2:])) * scale)
    if not around.is_pipeline:
        return two
    return max(two, everything - min(each.kept for each in measured))


def unreduced_gradients(model: ModelMemory, section: TrainingSection, accumulating: bool) -> int:
    """Return the gradients of a block, and the float32 buffer that they are reduced in."""
    block = max(model.blocks, default=0)
    if accumulating or not block:
        return block or model.outside
    return int(block * COMPUTE_DTYPES[section.precision].itemsize / 4) + block


def refusal(candidate: Candidate, section: TrainingSection) -> str:
    """Return why the section does not allow the layout; empty when it does."""
    try:
        candidate.applied(section)
    except ValidationError as error:
        return error.errors()[0]["msg"]
    return ""


def candidates(section: TrainingSection, processes: int, *, has_blocks: bool) -> list[Candidate]:
    """Return the layouts from the fastest to the smallest; the section's settings are kept."""
    least, degrees = section.memory.activation_checkpointing, section.parallelism
    levels = CHECKPOINTING[CHECKPOINTING.index(least) :] if has_blocks else (least,)
    # What only shards can: weights that differ between processes, offloading, a stage of ZeRO.
    needs_shards = section.memory.parameter_offload or bool(
        degrees.changed("replicas", "tensor", "pipeline", "expert", "zero_stage")
    )
    if processes == 1 and not needs_shards:
        return [Candidate("single", 0, level) for level in levels]
    strategy = "hsdp" if degrees.replicas > 1 else "fsdp"
    last = degrees.zero_stage or 3
    sharded = [Candidate(strategy, last, level) for level in levels]
    if section.memory.parameter_offload or degrees.zero_stage:
        return sharded
    sharded = [Candidate(strategy, 2, least), *sharded]
    return sharded if needs_shards else [Candidate("ddp", 0, least), *sharded]
