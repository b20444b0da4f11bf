"""Footprint: peak bytes of one process under a layout."""

from dataclasses import dataclass
from typing import Self

from pydantic import ValidationError
from torch import nn

from perennial.contracts.memory import MemoryEstimate
from perennial.engine.config.training import TrainingSection
from perennial.engine.data.batching import BatchPlan
from perennial.engine.memory.live import PassMemory
from perennial.engine.memory.update import UpdateMemory
from perennial.engine.precision import COMPUTE_DTYPES
from perennial.engine.task import Task

CHECKPOINTING = ("none", "selective", "full")


@dataclass(frozen=True)
class ModelMemory:
    """The bytes of a whole model.

    Attributes:
        weights: All parameters.
        buffers: Running statistics and constants.
        trainable: The parameters that get gradients.
        blocks: Each of the task's blocks.
        update: What the optimizer keeps and needs.
    """

    weights: int
    buffers: int
    trainable: int
    blocks: tuple[int, ...]
    update: UpdateMemory

    @property
    def outside(self) -> int:
        """Weights that belong to no block."""
        return self.weights - sum(self.blocks)

    @classmethod
    def of(cls, model: nn.Module, task: Task, section: TrainingSection, *, is_on_gpu: bool) -> Self:
        """Return the bytes of a model before it is parallelized."""
        return cls(
            weights=sum(parameter.nbytes for parameter in model.parameters()),
            buffers=sum(buffer.nbytes for buffer in model.buffers()),
            trainable=sum(
                parameter.nbytes for parameter in model.parameters() if parameter.requires_grad
            ),
            blocks=tuple(
                sum(parameter.nbytes for parameter in block.parameters())
                for block in task.blocks(model)
            ),
            update=UpdateMemory.of(model, section.optimizer, is_on_gpu=is_on_gpu),
        )


@dataclass(frozen=True)
class Candidate:
    """A candidate layout."""

    strategy: str
    zero_stage: int
    checkpointing: str

    @property
    def is_sharded(self) -> bool:
        """Whether processes share one copy of the state."""
        return self.strategy == "fsdp"

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
    """Inputs of an estimate besides model and layout."""

    section: TrainingSection
    processes: int
    device_type: str

    @property
    def batches(self) -> BatchPlan:
        """Return how a global batch is divided."""
        section = self.section
        return BatchPlan(section.global_batch_size, section.micro_batch_size, self.processes)

    @property
    def rows(self) -> int:
        """Return the rows of the largest forward pass."""
        largest_share = -(-self.batches.global_size // self.processes)
        return -(-largest_share // self.batches.accumulation_steps)

    @property
    def is_accumulating(self) -> bool:
        """Whether gradients of earlier passes are there while activations are."""
        return self.batches.accumulation_steps > 1


def estimate(
    candidate: Candidate, model: ModelMemory, measured: PassMemory, around: Circumstances
) -> MemoryEstimate:
    """Estimate one process's memory under a layout."""
    section, shards = around.section, around.processes if candidate.is_sharded else 1
    gathered = buckets = block_gradients = 0
    # While gradients accumulate they are not reduced, and so not sharded either.
    gradients = model.trainable if around.is_accumulating else share(model.trainable, shards)
    activations = measured.activations
    if not around.is_accumulating:
        # They come as activations go. The worst moment with a part of the gradients is no worse
        # than on the line between that without and that with all: a maximum of linear functions.
        growth = share(measured.with_gradients - measured.activations, shards)
        least = measured.with_outside if candidate.is_sharded else measured.activations
        activations = max(least + growth - gradients, 0)
    if candidate.is_sharded:
        gathered = gathered_weights(candidate, model, section)
        block_gradients = unreduced_gradients(model, section, around.is_accumulating)
    else:
        activations += measured.weight_casts
        buckets = model.trainable if candidate.strategy == "ddp" else 0
    weights = share(model.weights, shards)
    optimizer = share(model.update.state, shards)
    averaged = share(model.trainable, shards) if section.averaging else 0
    staging = 0
    if section.checkpoints.asynchronous and around.device_type == "cpu":
        staging = weights + optimizer + averaged
    if section.memory.parameter_offload and around.device_type != "cpu":
        weights = gradients = optimizer = averaged = 0
    update = share(model.update.temporary, shards)
    loading = loading_peak(candidate, model, weights, around)
    kept = model.buffers + weights + gradients + optimizer + averaged + buckets + staging
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
        communication=buckets + block_gradients,
        update=update,
        staging=staging,
        loading=loading,
        peak=max(kept + max(activations + gathered + block_gradients, update), loading),
        refused=refusal(candidate, section),
    )


def share(size: int, shards: int) -> int:
    """Return one process's part."""
    return -(-size // shards)


def loading_peak(
    candidate: Candidate, model: ModelMemory, weights: int, around: Circumstances
) -> int:
    """Return the most while the initial model becomes what is kept of it, module by module.

    On a GPU the module that is being sharded is there as a whole, beside the shards; on the host
    all modules that are still to be sharded are.

    Args:
        candidate: The layout.
        model: Whole.
        weights: What this process keeps of them on its device.
        around: The device.
    """
    if not candidate.is_sharded:
        return model.buffers + model.weights
    largest = max(model.outside, *model.blocks, 0)
    if around.device_type == "cpu":
        return model.buffers + model.weights + share(largest, around.processes)
    return model.buffers + weights + largest


def gathered_weights(candidate: Candidate, model: ModelMemory, section: TrainingSection) -> int:
    """Weights outside the blocks stay from the forward to the end of the backward pass.

    Of the blocks there are two under ZeRO 3: the one that computes, and the next, on its way.
    """
    blocks = sum(model.blocks) if candidate.zero_stage == 2 else sum(sorted(model.blocks)[-2:])
    return int((model.outside + blocks) * COMPUTE_DTYPES[section.precision].itemsize / 4)


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
    least = section.memory.activation_checkpointing
    levels = CHECKPOINTING[CHECKPOINTING.index(least) :] if has_blocks else (least,)
    if processes == 1 and not section.memory.parameter_offload:
        return [Candidate("single", 0, level) for level in levels]
    sharded = [Candidate("fsdp", 2, least), *(Candidate("fsdp", 3, level) for level in levels)]
    if section.memory.parameter_offload:  # which only sharding can
        return sharded[1:]
    return [Candidate("ddp", 0, least), *sharded]
