"""The knobs of layout: over how many processes, and how memory is traded for time."""

from typing import Annotated, Literal

from pydantic import Field

from components.contracts.section import Section

Strategy = Literal["auto", "single", "ddp", "fsdp", "hsdp"]
Degree = Annotated[int, Field(ge=1, le=4096)]


class Parallelism(Section):
    """Dimensions of the device mesh beside the data; 1 means not used."""

    replicas: Degree = 1
    """Under `hsdp`: copies of the sharded model. Take the number of machines, so that gathering
    weights stays within one."""
    tensor: Degree = 1
    """Processes that share each matrix (tensor parallelism); needs a plan of the task. Keep it
    within one machine."""
    pipeline: Degree = 1
    """Stages that the blocks are divided into (pipeline parallelism); needs a plan of the task."""
    pipeline_schedule: Literal["gpipe", "1f1b", "interleaved_1f1b"] = "1f1b"
    """Order of the micro-batches in the pipeline. `1f1b` holds fewer activations than `gpipe`;
    `interleaved_1f1b` gives each process two groups of blocks and waits less."""
    context: Degree = 1
    """Processes that share each sequence (context parallelism); for sequences too long for one."""
    expert: Degree = 1
    """Processes that share the experts of each layer (expert parallelism)."""
    zero_stage: Literal[1, 2, 3] = 3
    """Under `fsdp` and `hsdp`. 3 shards weights, gradients and optimizer state; 2 keeps the weights
    gathered between forward and backward: faster, when they fit; 1 (under `ddp` only) shards the
    optimizer state alone."""


class Memory(Section):
    """What is given up to save memory."""

    activation_checkpointing: Literal["none", "full", "selective"] = "none"
    """`full` computes each block's forward pass again in the backward pass (about a third more
    work) and keeps only the blocks' inputs; `selective` keeps the results of matrix products."""
    activation_offload: bool = False
    """Keep saved activations in the host's memory. Only where the device's memory is the limit."""
    parameter_offload: bool = False
    """Keep weights and optimizer state in the host's memory and update them there; `fsdp` and
    `hsdp`. The last resort: every step waits for the bus."""
