"""Options of an update: optimizer, clipping, averaged weights."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator

from perennial.contracts.section import Advanced, Section, tag_of
from perennial.engine.config.parallelism import Parallelism, Strategy

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
LearningRate = Annotated[float, Field(gt=0.0, lt=10.0)]
PositiveInt = Annotated[int, Field(ge=1)]
Implementation = Literal["auto", "foreach", "fused"]


class UpdateRule(Section):
    """Options of all optimizers."""

    batch_exponent: ClassVar[float] = 0.5
    """How the learning rate grows with the batch: as its square root for rules that divide by the
    gradient's own size, whose noise is what sets the step (Malladi et al. 2022, arXiv:2205.10287;
    measured by Granziol et al. 2022, JMLR 23)."""

    learning_rate: LearningRate
    """Peak step size. The first option to tune: try a third and three times the value. Lower it
    when the loss jumps, raise it when the loss still falls at the end."""
    reference_batch_size: Advanced[PositiveInt | None] = None
    """Global batch size that `learning_rate` was tuned with. Set it to try other batch sizes
    without tuning again: the rate is then scaled by `global_batch_size / reference_batch_size`
    (`sgd`) or its square root (all others). Holds for a few doublings; tune the rate of the final
    batch size."""
    weight_decay: Share = 0.0
    """Weight decay of matrices; biases, norms and embeddings are exempt. Raise it when the
    validation loss rises while the training loss falls."""
    no_decay: Advanced[tuple[str, ...]] = ()
    """Further parameters exempt from the decay, as patterns of their names: `"*.position"`,
    `"head.*"`. For positions, scales and tokens that a model keeps in matrices of its own."""

    rates: dict[str, Annotated[float, Field(gt=0.0)]] = Field(default_factory=dict)
    """Pattern of parameters' names → factor of their learning rate, such as `{"head.*" = 10.0}` for
    a new head on pretrained weights. Of several patterns the last counts."""
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Factor of the learning rate from each of the task's blocks to the one before it, in addition
    to `rates`: what follows the blocks has the whole rate, what precedes them the least. 0.65 to
    0.9 are usual for fine-tuning a transformer (Bao et al. 2021, arXiv:2106.08254)."""

    def peak_rate(self, global_batch_size: int) -> float:
        """Return the peak learning rate, scaled to the batch size where that is asked for."""
        if self.reference_batch_size is None:
            return self.learning_rate
        growth = global_batch_size / self.reference_batch_size
        return self.learning_rate * float(growth**self.batch_exponent)


class Moments(UpdateRule):
    """Options of Adam and its variants."""

    betas: tuple[Share, Share] = (0.9, 0.999)
    """Decay rates of the gradient's running mean and square. Lower the second to 0.95 for long
    sequences."""


class AdamW(Moments):
    """Adam with decoupled weight decay: the first choice for most models."""

    name: Literal["adamw"] = "adamw"
    learning_rate: LearningRate = 3e-4
    weight_decay: Share = 0.01
    implementation: Advanced[Implementation] = "auto"
    """`fused` is one kernel per group of parameters, `foreach` one per operation. `auto` takes
    `fused` on GPUs and `foreach` on CPUs: there the fused kernel saves 0.2 ms a step, but rounds
    differently at the ends of its vectors, so that weights depend on how they are sharded. Choose
    `fused` on a CPU when speed counts more than that."""


class Adam(Moments):
    """Adam; its weight decay is added to the gradient. For reproducing results obtained with it."""

    name: Literal["adam"]
    learning_rate: LearningRate = 3e-4
    implementation: Advanced[Implementation] = "auto"
    """As for `adamw`."""


class NAdam(Moments):
    """Adam with Nesterov momentum and decoupled weight decay; at times faster early on."""

    name: Literal["nadam"]
    learning_rate: LearningRate = 1e-3


class Sgd(UpdateRule):
    """Gradient descent with momentum: for convolutional networks with time to tune the rate."""

    # A gradient that averages k times as many examples has 1/k of the variance; k small steps
    # then equal one that is k times as long (Goyal et al. 2017, arXiv:1706.02677).
    batch_exponent: ClassVar[float] = 1.0

    name: Literal["sgd"]
    learning_rate: LearningRate = 0.1
    momentum: Share = 0.9
    """Momentum; 0 (with `nesterov = false`) turns it off."""
    nesterov: bool = True
    """Use Nesterov momentum. Turn it off to reproduce plain momentum."""
    implementation: Advanced[Literal["foreach", "fused"]] = "foreach"
    """`fused` is one kernel per group of parameters, but cannot update sharded weights."""

    @model_validator(mode="after")
    def _momentum_fits(self) -> Self:
        if self.nesterov and self.momentum == 0.0:
            raise ValueError(
                "nesterov = true has no effect with momentum = 0: set nesterov = false"
            )
        return self


class Adafactor(UpdateRule):
    """Adam with a factored second moment (a row times a column): a hundredth of Adam's state.

    Choose it when optimizer state is what does not fit in memory (Shazeer & Stern 2018,
    arXiv:1804.04235).
    """

    name: Literal["adafactor"]
    learning_rate: LearningRate = 1e-2
    """Peak step size, as a share of each parameter's own size (see `scale_by_parameter`). The
    default is the paper's."""
    scale_by_parameter: Advanced[bool] = True
    """Multiply the step by the root mean square of the parameter. Turn it off, with a learning
    rate as of `adamw`, for fine-tuning."""


class AdamW8bit(Moments):
    """AdamW with 8-bit moments: a quarter of AdamW's state, at nearly its quality.

    Needs `pip install perennial[optimizers]`, and Triton on GPUs. Tensors that have, on one
    process, fewer than 4,096 values or not a multiple of 256 keep 32 bits. Blocks of 256 values
    share a scale: one whose gradients are a thousand times smaller than its neighbours' may jump,
    so compare a run with `adamw` first. Training waits for its checkpoints: PyTorch cannot copy
    such moments to write them beside it. CPUs only try it out: the update is slower there.
    """

    name: Literal["adamw8bit"]
    learning_rate: LearningRate = 3e-4
    weight_decay: Share = 0.01


Optimizer: TypeAlias = Annotated[
    Annotated[AdamW, Tag("adamw")]
    | Annotated[Adam, Tag("adam")]
    | Annotated[NAdam, Tag("nadam")]
    | Annotated[Sgd, Tag("sgd")]
    | Annotated[Adafactor, Tag("adafactor")]
    | Annotated[AdamW8bit, Tag("adamw8bit")],
    Discriminator(tag_of("name", "adamw")),
]


class NormClipping(Section):
    """Scale gradients whose norm exceeds a limit down to it; their direction is kept."""

    method: Literal["norm"] = "norm"
    max_norm: Annotated[float, Field(gt=0.0)] = 1.0
    """Largest gradient norm. Set it near the 90th percentile of the reported norms: clipping should
    be rare."""


class ValueClipping(Section):
    """Limit each element of the gradient, which changes the direction.

    Use it for single parameters with known outliers; otherwise `norm`.
    """

    method: Literal["value"]
    max_value: Annotated[float, Field(gt=0.0)]
    """Largest absolute value of an element."""


class AdaptiveClipping(Section):
    """Adaptive limit: a percentile of the norms observed before clipping.

    Choose it when a good limit is not known, or when norms change much during training.
    """

    method: Literal["adaptive"]
    percentile: Annotated[float, Field(gt=0.0, lt=100.0)] = 90.0
    """Percentile of the observed norms that becomes the limit: in the long run this percentage of
    the updates is not clipped. Lower it when the loss still jumps."""
    window: Advanced[Annotated[int, Field(ge=10, le=100_000)]] = 500
    """Number of latest updates whose norms are used, including the current one. Lower it when norms
    change quickly."""


class NoClipping(Section):
    """No clipping: gradients are applied as they are."""

    method: Literal["none"]


Clipping: TypeAlias = Annotated[
    Annotated[NormClipping, Tag("norm")]
    | Annotated[ValueClipping, Tag("value")]
    | Annotated[AdaptiveClipping, Tag("adaptive")]
    | Annotated[NoClipping, Tag("none")],
    Discriminator(tag_of("method", "norm")),
]


class Averaging(Section):
    """Exponential moving average of the weights, evaluated and saved with them.

    Checkpoints are ranked by the better of the two; `select_checkpoint` chooses between them.
    """

    decay: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.999
    """Share of the average that an update keeps. It averages over about 1 / (1 - decay) updates;
    choose a tenth of the steps or less."""
    warm_up: Advanced[bool] = True
    """Let the decay grow with the step, as (1 + step) / (10 + step) up to `decay`, so that the
    initial weights are soon forgotten. Turn it off to continue from good weights."""


Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]


class Course(Section):
    """Options of all shapes."""

    steps: Advanced[PositiveInt | None] = None
    """Number of steps that the fractions refer to; after it the rate is constant. The default is
    `training.steps`; another length is an error unless `allow_other_length` is set."""
    allow_other_length: Advanced[bool] = False
    """Allow `steps` to differ from `training.steps`: to train the first part of a longer schedule,
    or to continue after a short one. A schedule that does not end with the training is usually a
    mistake."""

    @model_validator(mode="after")
    def _length_fits(self) -> Self:
        if self.allow_other_length and self.steps is None:
            raise ValueError("allow_other_length has no effect without steps; give both or none")
        return self


class WarmedUp(Course):
    """Options of schedules with a linear warm-up."""

    warmup_fraction: Share = 0.05
    """Share of the steps with a linear warm-up to the peak. Raise it when the first steps
    diverge."""


class Constant(WarmedUp):
    """Constant at the peak: shows for how many steps training pays off."""

    shape: Literal["constant"]


class Stepwise(WarmedUp):
    """Constant between milestones, at each of which the rate drops.

    The classic schedule of convolutional networks; use it to reproduce published results.
    """

    shape: Literal["step"]
    milestones: Annotated[tuple[Fraction, ...], Field(min_length=1)] = (0.5, 0.75)
    """Steps at which the rate drops, as shares of all steps, in ascending order."""
    factor: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    """Factor of the rate at each milestone."""

    @model_validator(mode="after")
    def _milestones_ascend(self) -> Self:
        if any(first >= second for first, second in pairwise(self.milestones)):
            raise ValueError("milestones must be in ascending order")
        return self


class Decaying(WarmedUp):
    """Options of schedules that decay to a final rate."""

    final_fraction: Share = 0.0
    """Final rate, as a share of the peak. Raise it to 0.1 when the training will be continued
    later."""


class Linear(Decaying):
    """Linear decay."""

    shape: Literal["linear"]


class Cosine(Decaying):
    """Cosine decay: slow, fast, slow. The default."""

    shape: Literal["cosine"] = "cosine"


class WarmupStableDecay(Decaying):
    """Warm-up, stable, decay: constant, then a decay at the end.

    Choose it if you may extend the training: a checkpoint from before the decay can be continued
    for any number of steps (Hägele et al. 2024, arXiv:2405.18392). The rate decays as
    1 - √progress, the best shape in the paper.
    """

    shape: Literal["wsd"]
    decay_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 0.2
    """Share of the steps, at the end, in which the rate decays. 0.1 to 0.2 come close to a
    cosine."""

    @model_validator(mode="after")
    def _fractions_fit(self) -> Self:
        if self.warmup_fraction + self.decay_fraction > 1.0:
            raise ValueError("the sum of warmup_fraction and decay_fraction exceeds 1")
        return self


class OneCycle(Course):
    """One cycle: the rate rises, then falls far below its start; momentum does the opposite.

    For fast training with large rates, mostly of small convolutional networks (Smith & Topin 2018,
    arXiv:1708.07120). The rest is as in `torch.optim.lr_scheduler.OneCycleLR`.
    """

    shape: Literal["one_cycle"]
    rise_fraction: Fraction = 0.3
    """Share of the steps in which the rate rises to the peak."""
    final_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 4e-6
    """Final rate, as a share of the peak."""
    cycle_momentum: Advanced[bool] = True
    """Let momentum (`sgd`) or the first of `betas` (`adam`, `adamw`, `nadam`) fall while the rate
    rises, and rise again, instead of staying constant."""


Schedule: TypeAlias = Annotated[
    Annotated[Constant, Tag("constant")]
    | Annotated[Stepwise, Tag("step")]
    | Annotated[Linear, Tag("linear")]
    | Annotated[Cosine, Tag("cosine")]
    | Annotated[WarmupStableDecay, Tag("wsd")]
    | Annotated[OneCycle, Tag("one_cycle")],
    Discriminator(tag_of("shape", "cosine")),
]


class Stage(Section):
    """A part of a training in which only some parameters are updated.

    Each stage begins with a new optimizer and follows a schedule of its own.
    """

    steps: PositiveInt
    """Number of optimizer steps."""
    trainable: Annotated[tuple[str, ...], Field(min_length=1)] = ("*",)
    """Patterns of the parameters that are updated; those in `training.frozen` are not."""
    learning_rate: LearningRate | None = None
    """Peak step size; None means that of `training.optimizer`."""
    schedule: Schedule | None = None
    """Schedule over the stage's steps; None means `training.schedule`."""


@dataclass(frozen=True)
class Span:
    """The steps of a stage, or of a training without any: updates done before it and at its end."""

    start: int
    stop: int
    stage: Stage


def check_layout(optimizer: Optimizer, strategy: Strategy, parallelism: Parallelism) -> None:
    """Refuse an optimizer that cannot update weights laid out like this.

    Raises:
        ValueError: it cannot; what PyTorch 2.13 would raise at the first update.
    """
    is_whole = strategy in ("single", "ddp") and parallelism.tensor == parallelism.expert == 1
    if isinstance(optimizer, Sgd) and optimizer.implementation == "fused" and not is_whole:
        raise ValueError(
            f"optimizer.implementation = 'fused' of 'sgd' does not run under strategy = "
            f"{strategy!r}: PyTorch has no fused SGD for sharded weights "
            "(aten._fused_sgd_ has no sharding strategy); use 'foreach', or strategy = 'ddp'"
        )
    if isinstance(optimizer, AdamW8bit) and parallelism.tensor > 1:
        raise ValueError(
            "optimizer.name = 'adamw8bit' does not run with parallelism.tensor > 1: its blocks of "
            "256 values are cut from rows; use 'adafactor' to save memory there"
        )


def check_schedule(optimizer: Optimizer, schedule: Schedule, steps: int) -> None:
    """Refuse a schedule that does not fit the training's length or its optimizer.

    Raises:
        ValueError: it does not.
    """
    if schedule.steps not in (None, steps) and not schedule.allow_other_length:
        raise ValueError(
            f"schedule.steps = {schedule.steps} is not training.steps = {steps}: the learning rate "
            "would not end where the training does; remove it, or set "
            "schedule.allow_other_length = true"
        )
    if not isinstance(schedule, OneCycle) or not schedule.cycle_momentum:
        return
    reason = ""
    if isinstance(optimizer, Adafactor) or (isinstance(optimizer, Sgd) and not optimizer.momentum):
        reason = "has no momentum"
    elif isinstance(optimizer, AdamW8bit):
        reason = "would compile its kernel again at every step"
    if reason:
        raise ValueError(
            f"schedule.cycle_momentum: {optimizer.name!r} {reason}; set cycle_momentum = false"
        )
