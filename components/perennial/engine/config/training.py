"""The `[training]` section: budget, batch, optimizer, precision and layout."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from perennial.contracts.adapter import Adapter
from perennial.contracts.section import Advanced, Layout, Section
from perennial.engine.config.distillation import Distillation
from perennial.engine.config.optimization import (
    AdamW,
    Averaging,
    Clipping,
    Constant,
    Cosine,
    NormClipping,
    Optimizer,
    Schedule,
    Span,
    Stage,
    WarmedUp,
    check_layout,
    check_schedule,
)
from perennial.engine.config.parallelism import (
    Memory,
    Parallelism,
    Strategy,
    check_memory,
    check_parallelism,
)

PositiveInt = Annotated[int, Field(ge=1)]


GHOST_BATCH_SIZE = 64
"""The value that generalised best in Hoffer et al. (2017) and in most reports since."""


class Normalization(Section):
    """The examples over which batch normalisation computes its statistics."""

    batch_norm: Literal["local", "sync", "ghost"] = "local"
    """`local`: the rows of one process and forward pass. `sync`: those of all processes; choose it
    when they have fewer than about 16 each, or when the number of processes must not matter.
    `ghost`: chunks of fixed size; choose it when a larger batch generalises worse."""
    ghost_batch_size: Advanced[PositiveInt | None] = None
    """Largest number of rows of a chunk under `ghost`; None means 64. Tune it between 16 and
    128."""

    @model_validator(mode="after")
    def _is_used(self) -> Self:
        if self.ghost_batch_size is not None and self.batch_norm != "ghost":
            raise ValueError(
                f"ghost_batch_size = {self.ghost_batch_size} has no effect with batch_norm = "
                f'"{self.batch_norm}": set batch_norm = "ghost", or remove it'
            )
        return self


MOST_ENCODE_WORKERS = 64


class Loading(Section):
    """Data loading: resident or streamed rows, prefetching, workers, pinned memory."""

    mode: Literal["auto", "resident", "streaming"] = "auto"
    """`resident` encodes the whole split once per machine, into local files. `streaming` encodes
    row groups when they are needed: each process reads its share, disk and memory stay bounded, and
    the order is shuffled within `shuffle_rows`. `auto` takes `resident` where the encoded split
    fits on the local disk, and reports why."""
    shuffle_rows: Annotated[int, Field(ge=1)] = 262_144
    """When streaming: rows, over all processes, among which a batch is drawn; whole row groups, 8
    at least. Raise it where neighbouring rows are alike and curves are noisy, or where there are
    more processes than row groups among so many rows. Costs disk and time to the first batch."""
    encode_workers: Layout[Annotated[int, Field(ge=0, le=MOST_ENCODE_WORKERS)]] = 1
    """When streaming: processes, beside each training process, that read and encode ahead; 0
    encodes in the training. Raise it while the data wait is high; the profile names a number."""
    encode_ahead: Layout[Advanced[bool]] = False
    """When streaming: encode all blocks into the store before the training starts, through the
    processes of the step's machine or Dask; training processes then only read tensors. Blocks that
    are there are not encoded again. Turn it on when GPUs wait for rows."""
    cache_gib: Layout[Advanced[Annotated[float, Field(gt=0)]]] = 16.0
    """When streaming: most GiB of encoded rows kept on a machine's disk, the latest used. Raise it
    where the split nearly fits, so that later epochs encode nothing."""
    fit_rows: Advanced[PositiveInt | None] = 1_000_000
    """When streaming: about how many rows `fit` sees: whole row groups, evenly spaced over the
    split. None means all. Raise it where rare categories matter."""
    prefetch_batches: Layout[Advanced[Annotated[int, Field(ge=0, le=64)] | None]] = None
    """Batches gathered ahead by threads; 0 gathers them in the loop. None means 2 on a GPU, and 0
    on a CPU, where a thread would compete with the model for cores (4 % of a step of 3 ms), unless
    there are more `workers`. Raise it when the reported data wait is more than a few percent."""
    workers: Layout[Annotated[int, Field(ge=1, le=64)]] = 1
    """Threads that gather and augment batches. Raise it when the data wait is steadily high and
    `augment` consists of array operations, which run in parallel; plain Python code does not: move
    it into `encode`, which runs once."""
    pin_memory: Layout[Advanced[bool | None]] = None
    """Put batches into page-locked memory, which a GPU copies while it computes. None means: on a
    GPU. Turn it off when locked memory is limited."""

    def on(self, device_type: str) -> "Loading":
        """Return these options with all defaults resolved."""
        is_gpu = device_type == "cuda"
        ahead, pinned = self.prefetch_batches, self.pin_memory
        return self.model_copy(
            update={
                "prefetch_batches": (2 if is_gpu or self.workers > 1 else 0)
                if ahead is None
                else ahead,
                "pin_memory": is_gpu if pinned is None else pinned,
            }
        )

    @model_validator(mode="after")
    def _is_used(self) -> Self:
        names = ("shuffle_rows", "encode_workers", "encode_ahead", "cache_gib", "fit_rows")
        unused = self.changed(*names)
        if self.mode == "resident" and unused:
            raise ValueError(
                f'{unused[0]} = {getattr(self, unused[0])} has no effect with mode = "resident": '
                "remove one of them"
            )
        if self.encode_ahead and self.mode == "auto":
            raise ValueError(
                'encode_ahead = true needs mode = "streaming": only the training decides under '
                '"auto" whether rows are streamed'
            )
        if self.workers > 1 and self.prefetch_batches == 0:
            raise ValueError(
                f"workers = {self.workers} has no effect with prefetch_batches = 0, which gathers "
                "in the loop: raise prefetch_batches, or remove it"
            )
        return self


class Checkpoints(Section):
    """Choice of the checkpoints that are kept; one is taken at every evaluation.

    While the training runs, the one before the last is kept too.
    """

    keep_best: PositiveInt = 3
    """Best checkpoints kept besides the last; raise it for a noisy validation metric."""
    keep_every_steps: Advanced[PositiveInt | None] = None
    """Also keep the checkpoints at multiples of this number of steps, for later analysis. Costs
    disk space."""
    asynchronous: Layout[Advanced[bool]] = True
    """Copy the state to host memory and write it while training continues. Turn it off when host
    memory does not suffice for one more copy of the state."""


class Anomalies(Section):
    """Reaction to losses or gradients that are not finite, and to loss spikes."""

    not_finite: Literal["stop", "skip"] = "stop"
    """Loss or gradient is NaN or infinite: `stop` saves the batch's identity and fails; `skip`
    saves it too, skips the update and counts it. Choose `skip` for rare, known bad batches only."""
    max_skipped: Advanced[PositiveInt] = 10
    """More skipped updates than this fail the training: the cause is then not a few bad batches."""
    spike: Literal["ignore", "warn", "rewind"] = "warn"
    """The loss jumps far above its recent level and stays there. `rewind` returns to the last
    checkpoint before the jump and skips the batches that led to it; choose it for long unattended
    trainings."""
    spike_window_steps: Advanced[Annotated[int, Field(ge=8, le=10_000)]] = 100
    """Number of latest losses that a jump is compared with; no jump is detected before there are as
    many. Raise it to a twentieth of a long training's steps, as its losses change slowly."""
    max_rewinds: Advanced[PositiveInt] = 3
    """More rewinds than this fail the training: lower the learning rate instead."""

    @model_validator(mode="after")
    def _is_used(self) -> Self:
        for name, needed, is_used in (
            ("max_skipped", 'not_finite = "skip"', self.not_finite == "skip"),
            ("max_rewinds", 'spike = "rewind"', self.spike == "rewind"),
            ("spike_window_steps", 'spike = "warn" or "rewind"', self.spike != "ignore"),
        ):
            if not is_used and self.changed(name):
                raise ValueError(
                    f"{name} = {getattr(self, name)} has an effect only with {needed}: set that, "
                    "or remove it"
                )
        return self


class Watchdog(Section):
    """Detection of hangs."""

    hang_factor: Annotated[float, Field(gt=1.0)] | None = 20.0
    """A step that takes this many times the median (and `minimum_seconds` at least) makes every
    rank write its stack traces; None turns it off. Raise it for steps of very different lengths."""
    minimum_seconds: Annotated[float, Field(gt=0.0)] = 60.0
    """Minimum duration before a step counts as hanging. Raise it where storage or network pause for
    minutes."""
    on_hang: Literal["fail", "dump"] = "fail"
    """Reaction after the stack traces: `fail` ends the processes when the step has not finished in
    twice that time, so that the training restarts from its last checkpoint; `dump` keeps waiting.
    Choose `dump` to attach a debugger."""

    @model_validator(mode="after")
    def _is_used(self) -> Self:
        unused = self.changed("minimum_seconds", "on_hang") if self.hang_factor is None else []
        if unused:
            raise ValueError(
                f"{unused[0]} = {getattr(self, unused[0])!r} has no effect without hang_factor, "
                "which turns the watchdog on: set that, or remove it"
            )
        return self


class Stragglers(Section):
    """Detection of slow processes."""

    every_steps: Annotated[int, Field(ge=10)] | None = 500
    """Steps between two samples; a sample traces a few steps at about 2 ms each. None turns
    sampling off. Lower it while looking for a slow machine."""


class Profile(Section):
    """A short trace that names the training's bottleneck."""

    start_step: Advanced[Annotated[int, Field(ge=1)]] = 10
    """The first traced step; earlier ones are the warm-up. A training resumed after it traces its
    first steps."""
    steps: Advanced[Annotated[int, Field(ge=1, le=50)]] = 5
    """Number of traced steps. More make the trace larger, not better."""


class TrainingSection(Section):
    """Options of a training. The defaults suit a table of about 100,000 rows."""

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    """Seed of initial weights, data order and dropout. Change it only to measure run-to-run
    variance."""
    steps: PositiveInt = 2000
    """Number of optimizer steps. Raise it when the best checkpoint is among the last."""
    extended_from: tuple[PositiveInt, ...] = ()
    """Lengths, ascending, of shorter trainings that this one extends. Add the old `steps` when you
    raise `steps`: the training then continues from that one's last checkpoint. Up to each length
    the learning rate follows the schedule of that length, so that the result is the same without
    those checkpoints."""
    global_batch_size: PositiveInt = 1024
    """Examples per optimizer step, over all processes. Raise it until a step takes noticeably
    longer, and tune the learning rate again afterwards."""
    micro_batch_size: Layout[PositiveInt] = 512
    """Most examples per process and forward pass; sets the memory use. Halve it when memory runs
    out: the result stays the same up to rounding, except for dropout and batch statistics."""
    optimizer: Optimizer = AdamW()
    """`adamw` (default) or another by `name`, with its own options."""
    schedule: Schedule = Cosine()
    """Learning rate schedule: `cosine` (default) or another by `shape`."""
    frozen: tuple[str, ...] = ()
    """Patterns of parameters that are never updated, such as `"encoder.*"`. A batch normalisation
    that is frozen as a whole keeps its running statistics, too; one without parameters does so in
    the smallest part of the model around it that is frozen as a whole."""
    stages: tuple[Stage, ...] = ()
    """Stages with trainable parameters, steps and schedule of their own, one after the other: a new
    head first, then all of the model. Their steps add up to `steps`."""
    adapter: Adapter | None = None
    """A LoRA adapter that is trained in the place of the weights, which come from
    `[model.initial]`. Choose it where the model is large, the data are few, or many versions are
    kept."""
    distillation: Distillation | None = None
    """Learning from the predictions of registered versions, beside the labels: of a larger model,
    or of several. Turn it on where the model that is served must be smaller or faster than the best
    one."""
    clipping: Clipping = NormClipping()
    """Gradient clipping: by `norm` (default) or another `method`."""
    averaging: Averaging | None = None
    """Moving average of the weights, evaluated and saved with them. Turn it on when the validation
    metric jumps from one evaluation to the next."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """`bf16` computes in bfloat16 and keeps weights, reductions and updates in float32. Choose it
    where the hardware multiplies bfloat16 faster (GPUs, AVX512-BF16 or AMX processors). `fp16`,
    with a loss scale that adapts, is for GPUs without bfloat16."""
    reduce_precision: Advanced[Literal["fp32", "compute"]] = "fp32"
    """Under `fsdp` and `hsdp` with a 16-bit `precision`: the type in which gradients are summed
    over the processes. `compute` sends half the bytes at lower precision: choose it when steps wait
    for the network, and compare the curves."""
    allow_tf32: bool = False
    """Let a GPU multiply float32 matrices with 10-bit mantissas: up to 8 times faster, a relative
    error of 1e-3. Refused on CPUs, which cannot."""
    simplified: bool = False
    """Train without augmentation and regularisation (weight decay, dropout, label smoothing, mixed
    examples, averaged weights) at a constant rate after the warm-up. Turn it on to look for a bug:
    what still goes wrong is not one of these. The log names what it turned off, and the gate
    promotes no such model."""
    deterministic: bool = True
    """Use reproducible kernels. Turn it off on GPUs for speed (autotuned convolutions, a faster
    backward pass of attention) when a resumed training need not equal the uninterrupted one bit for
    bit."""
    compile: bool = False
    """Compile each block (`torch.compile`), or the whole model if the task names no blocks. Pays
    off on GPUs and for wide models; on CPUs small models became slower."""
    strategy: Layout[Strategy] = "fsdp"
    """`fsdp` shards weights, gradients and optimizer state over the processes; `ddp` replicates
    them: faster for models that fit everywhere; `hsdp` shards within and replicates between groups
    of processes; `single` is one process; `auto` takes the simplest that fits in memory, with the
    dimensions of `parallelism`, and reports why."""
    parallelism: Layout[Parallelism] = Parallelism()
    """Further dimensions of the device mesh, for models too large for sharding alone."""
    memory: Layout[Memory] = Memory()
    """Options that save memory at the cost of time."""
    normalization: Normalization = Normalization()
    """The examples over which batch normalisation computes its statistics."""
    loading: Loading = Loading()
    """Data loading: resident or streamed rows, prefetching, workers, pinned memory."""
    evaluate_every_steps: PositiveInt = 100
    """Steps between evaluations; each evaluation also writes a checkpoint. Lower it when the curve
    turns between two points, raise it when evaluations take more than a tenth of the time."""
    evaluation_rows: PositiveInt | None = 10_000
    """Validation rows scored at each evaluation, the same each time; None means all. After
    training, the candidates are scored on all rows in any case."""
    log_every_steps: PositiveInt = 20
    """Steps between logged points."""
    checkpoints: Checkpoints = Checkpoints()
    """Which checkpoints are kept, and whether training waits for them."""
    anomalies: Anomalies = Anomalies()
    """Reaction to losses or gradients that are not finite, and to loss spikes."""
    watchdog: Layout[Advanced[Watchdog]] = Watchdog()
    """Reaction to a step that hangs."""
    stragglers: Layout[Advanced[Stragglers]] = Stragglers()
    """Detection of slow processes."""
    peak_tflops: Layout[Advanced[Annotated[float, Field(gt=0.0)] | None]] = None
    """Peak throughput of one device at this precision, in TFLOP/s, for the utilisation (MFU). None
    takes it from a table of GPUs; set it for others, and for CPUs after measuring a large matrix
    product."""
    profile: Profile | None = None
    """A short trace that names the bottleneck: data, host, memory or computing."""
    metric: Advanced[str] = ""
    """Metric by which the best checkpoints are kept: one of the task's metrics, or `loss`. Empty
    means the metric of `[selection]`, else the task's first; keep the default."""

    def without_extras(self) -> "TrainingSection":
        """Return what a simplified training does: plain updates at a constant rate."""
        if not self.simplified:
            return self
        warmup = self.schedule.warmup_fraction if isinstance(self.schedule, WarmedUp) else 0.0
        return self.model_copy(
            update={
                "optimizer": self.optimizer.model_copy(update={"weight_decay": 0.0}),
                "schedule": Constant(shape="constant", warmup_fraction=warmup),
                "stages": tuple(
                    stage.model_copy(update={"schedule": None}) for stage in self.stages
                ),
                "averaging": None,
            }
        )

    def length_at(self, step: int) -> int:
        """Return the number of steps whose schedule an update, counted from 0, follows."""
        return next((length for length in self.extended_from if step < length), self.steps)

    def stage_at(self, step: int) -> Span:
        """Return the stage of an update, counted from 0; after the last, the last stage."""
        start = 0
        for stage in self.stages[:-1]:
            if step < start + stage.steps:
                return Span(start, start + stage.steps, stage)
            start += stage.steps
        rest = Stage(steps=self.length_at(step) if not self.stages else self.steps - start)
        return Span(start, self.steps, self.stages[-1] if self.stages else rest)

    def extended(self) -> "tuple[TrainingSection, ...]":
        """Return the sections of the trainings that this one extends, the longest first."""
        lengths = self.extended_from
        return tuple(
            self.model_copy(update={"steps": lengths[index], "extended_from": lengths[:index]})
            for index in reversed(range(len(lengths)))
        )

    @model_validator(mode="after")
    def _extension_fits(self) -> Self:
        lengths = (*self.extended_from, self.steps)
        if list(lengths) != sorted(set(lengths)):
            raise ValueError(
                f"extended_from = {list(self.extended_from)} must ascend and stay below steps = "
                f"{self.steps}: it lists the earlier, shorter lengths of this training"
            )
        return self

    @model_validator(mode="after")
    def _stages_fit(self) -> Self:
        if not self.stages:
            return self
        total = sum(stage.steps for stage in self.stages)
        if total != self.steps:
            raise ValueError(
                f"the steps of training.stages add up to {total}, but steps = {self.steps}: set "
                f"steps = {total}, or change a stage"
            )
        for option, is_used in (
            ("extended_from", self.extended_from),
            ('anomalies.spike = "rewind"', self.anomalies.spike == "rewind"),
            ("averaging", self.averaging),
            ("parallelism.pipeline", self.parallelism.pipeline > 1),
        ):
            if is_used:
                raise ValueError(
                    f"training.stages cannot be combined with {option}: a stage begins with a new "
                    "optimizer of some parameters; remove one of them"
                )
        for stage in self.stages:
            check_schedule(self.optimizer, stage.schedule or self.schedule, stage.steps)
        return self

    @model_validator(mode="after")
    def _adapter_fits(self) -> Self:
        degrees = self.parallelism
        divided = degrees.changed("tensor", "pipeline", "context", "expert")
        if self.adapter is not None and divided:
            raise ValueError(
                f"training.adapter cannot be combined with parallelism.{divided[0]} = "
                f"{getattr(degrees, divided[0])}: only the base's modules can be divided so; set "
                f"it to 1 and share the work by strategy = 'fsdp'"
            )
        return self

    @model_validator(mode="after")
    def _steps_fit(self) -> Self:
        kept, taken = self.checkpoints.keep_every_steps, self.evaluate_every_steps
        if kept is not None and kept % taken:
            raise ValueError(
                f"checkpoints.keep_every_steps = {kept} is not a multiple of evaluate_every_steps "
                f"= {taken}, the steps at which checkpoints are taken"
            )
        if self.profile is not None and self.profile.start_step > self.steps:
            raise ValueError(
                f"profile.start_step = {self.profile.start_step} is never reached: the training "
                f"ends at steps = {self.steps}; lower it"
            )
        return self

    @model_validator(mode="after")
    def _precision_fits(self) -> Self:
        shards = self.strategy in ("fsdp", "hsdp")
        if self.reduce_precision == "compute" and (self.precision == "fp32" or not shards):
            raise ValueError(
                "reduce_precision = 'compute' changes nothing with precision = "
                f"{self.precision!r} and strategy = {self.strategy!r}: set precision = 'bf16' and "
                "strategy = 'fsdp' or 'hsdp', or remove it"
            )
        return self

    @model_validator(mode="after")
    def _layout_fits(self) -> Self:
        check_layout(self.optimizer, self.strategy, self.parallelism)
        check_schedule(self.optimizer, self.schedule, self.steps)
        check_parallelism(self.strategy, self.parallelism)
        check_memory(self.memory, self.strategy, self.parallelism)
        return self
