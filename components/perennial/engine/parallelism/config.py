"""The knobs of layout: over how many processes, and how memory is traded for time."""

from typing import Annotated, Literal

from pydantic import Field

from perennial.contracts.section import Section

Strategy = Literal["auto", "single", "ddp", "fsdp", "hsdp"]
Degree = Annotated[int, Field(ge=1, le=4096)]


class Parallelism(Section):
    """Dimensions of the device mesh beside the data; 1 means not used."""

    replicas: Degree = 1
    """Under `hsdp`: copies of the sharded model. Take the number of machines, so that gathering
    weights stays within one."""
    tensor: Degree = 1
    """Processes that share each matrix (tensor parallelism); needs a plan of the task. Keep it
    within one machine. Dropout draws the same masks on all of them."""
    pipeline: Degree = 1
    """Processes that share the blocks, each a stage of them (pipeline parallelism); needs a plan of
    the task, and `fsdp` or `hsdp`. For models whose shards cannot be gathered in time, such as
    between machines with a slow network: stages exchange nothing but activations. Take many
    micro-batches per process, for the first and the last wait."""
    pipeline_schedule: Literal["gpipe", "1f1b", "interleaved_1f1b"] = "1f1b"
    """Order of the micro-batches in the pipeline. `1f1b` holds fewer activations than `gpipe`;
    `interleaved_1f1b` gives each process two groups of blocks and waits less."""
    context: Degree = 1
    """Processes that share each sequence (context parallelism), for sequences too long for one;
    needs a plan of the task. Attention exchanges heads for parts of the sequence, so it must divide
    the number of heads."""
    expert: Degree = 1
    """Processes that share the experts of each layer (expert parallelism); needs a plan of the
    task. They see different rows and send tokens to each other; `expert` divides the shards."""
    sequence_parallel: bool = False
    """Under `tensor`: also divide the stream between the shared matrices, along the sequence. Saves
    its activations at no more communication; lengths must be divisible by `tensor`."""
    zero_stage: Literal[1, 2, 3] | None = None
    """What is sharded, by the stages of ZeRO. 1, the optimizer state: `strategy = "ddp"` with 1
    here; take it when `ddp` almost fits. 2, gradients as well: `fsdp` or `hsdp` with 2 here. 3,
    weights as well: what `fsdp` and `hsdp` do when this is not set; under 2 weights stay gathered
    between forward and backward pass, which is faster when they fit. `ddp` alone shards nothing."""

    def data_size(self, processes: int) -> int:
        """Into how many parts so many processes divide a global batch: the rest share rows."""
        return processes // (self.tensor * self.context * self.pipeline)


def check_parallelism(strategy: Strategy, parallelism: Parallelism) -> None:
    """Whether the strategy can run the dimensions asked for.

    Raises:
        ValueError: it cannot.
    """
    if parallelism.replicas > 1 and strategy not in ("hsdp", "auto"):
        raise ValueError(
            f"parallelism.replicas = {parallelism.replicas} needs strategy = 'hsdp', which alone "
            f"makes copies of shards; it is {strategy!r}"
        )
    if strategy == "hsdp" and parallelism.replicas == 1:
        raise ValueError(
            "strategy = 'hsdp' needs parallelism.replicas > 1: with one copy of the shards it is "
            "'fsdp'; set replicas to the number of machines, or strategy = 'fsdp'"
        )
    if parallelism.pipeline == 1 and parallelism.changed("pipeline_schedule"):
        raise ValueError(
            f"parallelism.pipeline_schedule = {parallelism.pipeline_schedule!r} has no use with "
            "pipeline = 1: raise pipeline, or remove it"
        )
    if parallelism.sequence_parallel and parallelism.tensor == 1:
        raise ValueError("parallelism.sequence_parallel needs parallelism.tensor > 1")
    if parallelism.pipeline > 1:
        _check_pipeline(strategy, parallelism)
    for name in ("tensor", "expert"):
        if getattr(parallelism, name) > 1 and strategy in ("single", "ddp"):
            raise ValueError(
                f"parallelism.{name} needs strategy = 'fsdp' or 'hsdp': {strategy!r} cannot handle "
                "weights that differ between processes; zero_stage = 2 comes nearest to it"
            )
    fitting = {"single": (), "ddp": (1,), "fsdp": (2, 3), "hsdp": (2, 3), "auto": (2, 3)}[strategy]
    if parallelism.zero_stage not in (None, *fitting):
        stages = " or ".join(map(str, fitting)) or "no stage: one process has nobody to share with"
        raise ValueError(
            f"parallelism.zero_stage = {parallelism.zero_stage} does not go with "
            f"strategy = {strategy!r}, which knows {stages}; stage 1 is `ddp`, 2 and 3 are `fsdp`"
        )


def _check_pipeline(strategy: Strategy, parallelism: Parallelism) -> None:
    if strategy not in ("fsdp", "hsdp"):
        raise ValueError(
            f"parallelism.pipeline needs strategy = 'fsdp' or 'hsdp', not {strategy!r}: stages are "
            "sharded over the processes that hold the same one, even where that is only one"
        )
    used = [name for name in ("tensor", "context", "expert") if getattr(parallelism, name) > 1]
    if used:
        raise ValueError(
            f"parallelism.pipeline does not go with parallelism.{used[0]}: stages combine with "
            "shards and replicas alone"
        )


class Memory(Section):
    """What is given up to save memory."""

    activation_checkpointing: Literal["none", "full", "selective"] = "none"
    """`full` computes each block's forward pass again in the backward pass (about a third more
    work) and keeps only the blocks' inputs; `selective` keeps the results of matrix products."""
    activation_offload: bool = False
    """Keep saved activations in the host's memory. Only where the device's memory is the limit; not
    together with `parallelism.tensor`."""
    parameter_offload: bool = False
    """Keep weights and optimizer state in the host's memory and update them there; `fsdp` and
    `hsdp`. The last resort: every step waits for the bus. On a CPU, where they are in the host's
    memory anyway, it changes nothing and a warning in the log says so."""


def check_memory(memory: Memory, strategy: Strategy, parallelism: Parallelism) -> None:
    """Refuse to save memory, or to plan it, where that cannot be done.

    Raises:
        ValueError: it cannot.
    """
    if memory.parameter_offload and strategy in ("single", "ddp"):
        raise ValueError(
            f"memory.parameter_offload = true is what sharding can do, not strategy = "
            f"{strategy!r}; set strategy = 'fsdp' (one process is enough)"
        )
    if memory.activation_offload and parallelism.tensor > 1:
        raise ValueError(
            "memory.activation_offload does not go with parallelism.tensor > 1, whose activations "
            "are divided tensors; set activation_checkpointing = 'full' instead"
        )
    chosen = parallelism.changed(*Parallelism.model_fields)
    if strategy == "auto" and chosen:
        raise ValueError(
            f"strategy = 'auto' decides between single, ddp and fsdp by memory; with "
            f"parallelism.{chosen[0]} the layout is yours: set strategy = 'fsdp' or 'hsdp'"
        )
