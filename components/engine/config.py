"""The `[training]` section: budget, batch, optimizer, schedule, precision and sharding."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from components.contracts.section import Section

PositiveInt = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
LearningRate = Annotated[float, Field(gt=0.0, lt=10.0)]
Strategy = Literal["single", "ddp", "fsdp"]


class AdamW(Section):
    """Adam with decoupled weight decay."""

    name: Literal["adamw"] = "adamw"
    learning_rate: LearningRate = 3e-4
    """Peak step size. The first knob to tune: try thirds and triples. Lower it when the loss
    jumps, raise it when the loss still falls at the end."""
    weight_decay: Share = 0.01
    """Pull towards zero on matrices; biases, norms and embeddings are exempt. Raise it when the
    validation loss rises while the training loss falls."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Memory of the gradient's mean and square. Lower the second to 0.95 for long sequences."""


class Sgd(Section):
    """Gradient descent with Nesterov momentum."""

    name: Literal["sgd"]
    learning_rate: LearningRate = 0.1
    """Peak step size; needs tuning with every change of the batch size."""
    weight_decay: Share = 0.0
    """Pull towards zero on matrices; biases, norms and embeddings are exempt."""
    momentum: Share = 0.9
    """Memory of the gradient; 0 turns momentum off."""


def _optimizer_name(value: object) -> str:
    """The optimizer that a table or a section describes; AdamW unless it says otherwise."""
    if isinstance(value, dict):
        return str(value.get("name", "adamw"))
    return str(getattr(value, "name", ""))


Optimizer: TypeAlias = Annotated[
    Annotated[AdamW, Tag("adamw")] | Annotated[Sgd, Tag("sgd")], Discriminator(_optimizer_name)
]


class Schedule(Section):
    """The learning rate as a share of its peak, a closed form in the step."""

    shape: Literal["constant", "linear", "cosine"] = "cosine"
    """How it falls to zero after the warm-up. Choose `constant` to see, without committing to a
    budget, how long training keeps paying."""
    warmup_fraction: Share = 0.05
    """Share of the steps that climb linearly to the peak. Raise it when the first steps diverge."""


class TrainingSection(Section):
    """How a task is trained. The defaults suit a table of about 100,000 rows."""

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    """Initial weights, data order, dropout. Change it only to measure how much luck is in a
    result."""
    steps: PositiveInt = 2000
    """Updates of the weights: the budget. Raise it when the best checkpoint is among the last."""
    global_batch_size: PositiveInt = 1024
    """Examples per update, over all processes. Raise it until a step takes noticeably longer, and
    tune the learning rate again afterwards."""
    micro_batch_size: PositiveInt = 512
    """Examples per process and forward pass: how much is in memory at once. Halve it when memory
    runs out; the result stays the same up to rounding, but for dropout and batch statistics."""
    optimizer: Optimizer = AdamW()
    """`adamw` (default) or `sgd`, with its own knobs."""
    schedule: Schedule = Schedule()
    """The learning rate over the steps."""
    max_grad_norm: Annotated[float, Field(gt=0.0)] | None = 1.0
    """Longer gradients are scaled down to this length; None turns it off. Set it near the 90th
    percentile of the reported norms: clipping should be rare."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """`bf16` computes in bfloat16 and keeps weights, reductions and updates in float32. Choose it
    where the hardware multiplies bfloat16 faster (GPUs, AVX512-BF16 or AMX processors)."""
    strategy: Strategy = "fsdp"
    """`fsdp` shards weights, gradients and optimizer state over the processes; `ddp` replicates
    them: faster for models that fit everywhere; `single` is one process."""
    evaluate_every_steps: PositiveInt = 100
    """Steps between evaluations; each one is also a checkpoint. Lower it when the curve turns
    between two points, raise it when evaluations cost more than a tenth of the time."""
    evaluation_rows: PositiveInt | None = 10_000
    """Validation rows scored at each evaluation, the same each time; None means all. The
    candidates are scored on all rows after training in any case."""
    log_every_steps: PositiveInt = 20
    """Steps between logged points."""
    keep_best: PositiveInt = 3
    """Best checkpoints kept besides the last; raise it for a noisy validation metric."""
    metric: str = ""
    """What makes a checkpoint worth keeping: one of the task's metrics, or `loss`. Empty means the
    metric of `[selection]`, else the task's first; leave it so."""

    def gradient_accumulation_steps(self, world_size: int) -> int:
        """Forward passes of each process per update.

        Raises:
            ValueError: the global batch cannot be cut into equal micro-batches.
        """
        at_once = self.micro_batch_size * world_size
        steps, rest = divmod(self.global_batch_size, at_once)
        if rest or not steps:
            raise ValueError(
                f"global_batch_size = {self.global_batch_size} is no multiple of micro_batch_size "
                f"{self.micro_batch_size} x {world_size} processes = {at_once}; "
                f"take {max(steps, 1) * at_once} or another micro_batch_size"
            )
        return steps
