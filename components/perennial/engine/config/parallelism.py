"""Options of the layout: over how many processes, and how memory is traded for time."""

from typing import Annotated, Literal

from pydantic import Field

from perennial.contracts.section import Advanced, Section

Strategy = Literal["auto", "single", "ddp", "fsdp", "hsdp"]
Degree = Annotated[int, Field(ge=1, le=4096)]


class Parallelism(Section):
    """Dimensions of the device mesh besides data parallelism; 1 means not used."""

    replicas: Degree = 1
    """Under `hsdp`: number of copies of the sharded model. Use the number of machines, so that
    weights are gathered within a machine."""
    tensor: Degree = 1
    """Processes that share each matrix (tensor parallelism); needs a plan of the task. Keep it
    within one machine. Dropout draws the same masks on all of them."""
    pipeline: Degree = 1
    """Processes that each hold a stage of the blocks (pipeline parallelism); needs a plan of the
    task, and `fsdp` or `hsdp`. For models whose shards cannot be gathered in time, such as between
    machines with a slow network: stages exchange only activations. Use many micro-batches per
    process, so that the pipeline is rarely idle."""
    pipeline_schedule: Advanced[Literal["gpipe", "1f1b", "interleaved_1f1b"]] = "1f1b"
    """Order of the micro-batches in the pipeline. `1f1b` holds fewer activations than `gpipe`;
    `interleaved_1f1b` gives each process two groups of blocks and waits less."""
    context: Degree = 1
    """Processes that share each sequence (context parallelism), for sequences too long for one;
    needs a plan of the task. Attention exchanges heads for parts of the sequence, so it must divide
    the number of heads."""
    expert: Degree = 1
    """Processes that share the experts of each layer (expert parallelism); needs a plan of the
    task. They process different rows and exchange tokens; `expert` must divide the number of
    shards."""
    sequence_parallel: Advanced[bool] = False
    """Under `tensor`: also divide the activations between the shared matrices along the sequence.
    Saves memory without more communication; sequence lengths must be divisible by `tensor`."""
    zero_stage: Literal[1, 2, 3] | None = None
    """ZeRO stage, which sets what is sharded. 1, the optimizer state: only with `strategy = "ddp"`;
    use it when `ddp` almost fits. 2, gradients as well: with `fsdp` or `hsdp`. 3, weights as well:
    the default of `fsdp` and `hsdp`; under 2 weights stay gathered between forward and backward
    pass, which is faster when they fit. `ddp` alone shards nothing."""

    def data_size(self, processes: int) -> int:
        """Return into how many parts so many processes divide a global batch."""
        return processes // (self.tensor * self.context * self.pipeline)


def check_parallelism(strategy: Strategy, parallelism: Parallelism) -> None:
    """Refuse dimensions that the strategy cannot run.

    Raises:
        ValueError: it cannot.
    """
    if parallelism.replicas > 1 and strategy not in ("hsdp", "auto"):
        raise ValueError(
            f"parallelism.replicas = {parallelism.replicas} needs strategy = 'hsdp', the only one "
            f"with copies of shards (got {strategy!r})"
        )
    if strategy == "hsdp" and parallelism.replicas == 1:
        raise ValueError(
            "strategy = 'hsdp' needs parallelism.replicas > 1: with one copy of the shards it is "
            "'fsdp'; set replicas to the number of machines, or strategy = 'fsdp'"
        )
    if parallelism.pipeline == 1 and parallelism.changed("pipeline_schedule"):
        raise ValueError(
            f"parallelism.pipeline_schedule = {parallelism.pipeline_schedule!r} has no effect with "
            "pipeline = 1: raise pipeline, or remove it"
        )
    if parallelism.sequence_parallel and parallelism.tensor == 1:
        raise ValueError("parallelism.sequence_parallel needs parallelism.tensor > 1")
    if parallelism.pipeline > 1 and strategy not in ("fsdp", "hsdp", "auto"):
        raise ValueError(
            f"parallelism.pipeline needs strategy = 'fsdp' or 'hsdp', not {strategy!r}: stages are "
            "sharded over the processes that hold the same one, even where that is only one"
        )
    for name in ("tensor", "expert"):
        if getattr(parallelism, name) > 1 and strategy in ("single", "ddp"):
            raise ValueError(
                f"parallelism.{name} needs strategy = 'fsdp' or 'hsdp': {strategy!r} cannot handle "
                "weights that differ between processes; zero_stage = 2 is the closest alternative"
            )
    fitting = {"single": (), "ddp": (1,), "fsdp": (2, 3), "hsdp": (2, 3), "auto": (2, 3)}[strategy]
    if parallelism.zero_stage not in (None, *fitting):
        stages = " or ".join(map(str, fitting)) or "no stage: a single process shares nothing"
        raise ValueError(
            f"parallelism.zero_stage = {parallelism.zero_stage} cannot be combined with strategy = "
            f"{strategy!r}, which supports {stages}; stage 1 is `ddp`, 2 and 3 are `fsdp`"
        )


class Memory(Section):
    """Options that save memory at the cost of time."""

    activation_checkpointing: Literal["none", "full", "selective"] = "none"
    """`full` computes each block's forward pass again in the backward pass (about a third more
    work) and keeps only the blocks' inputs; `selective` keeps the results of matrix products."""
    activation_offload: bool = False
    """Keep saved activations in the host's memory. Use it only where the device's memory is the
    limit; not together with `parallelism.tensor`."""
    parameter_offload: bool = False
    """Keep weights and optimizer state in the host's memory and update them there; `fsdp` and
    `hsdp`. The last resort: every step waits for the bus. On a CPU it changes nothing, and the log
    has a warning."""
    on_out_of_memory: Literal["halve", "fail"] = "halve"
    """Reaction when a forward or backward pass runs out of memory. `halve` goes on from the last
    checkpoint with half the rows a pass and twice the passes an update, down to one row: batches,
    order and weights stay the same up to rounding (and the masks of dropout). Where a batch
    normalisation or a loss compares the rows of a pass, it fails with that reason. Choose `fail`
    where a smaller pass would be too slow to be worth its time."""


def check_memory(memory: Memory, strategy: Strategy, parallelism: Parallelism) -> None:
    """Refuse memory options where they cannot work.

    Raises:
        ValueError: it cannot.
    """
    if memory.parameter_offload and strategy in ("single", "ddp"):
        raise ValueError(
            f"memory.parameter_offload = true needs a sharding strategy (got {strategy!r}): set "
            "strategy = 'fsdp' (one process is enough)"
        )
    if memory.activation_offload and parallelism.tensor > 1:
        raise ValueError(
            "memory.activation_offload cannot be combined with parallelism.tensor > 1, whose "
            "activations are divided tensors; set activation_checkpointing = 'full' instead"
        )
