"""Results of `train_model` and `select_checkpoint`."""

import hashlib
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, JsonValue

from perennial.contracts.adapter import Adapter
from perennial.contracts.artifact import Artifact
from perennial.contracts.data import ImportPath, TaskColumns
from perennial.contracts.initial_model import Champions, InitialModel, Origin, Teachers
from perennial.contracts.memory import MemoryPlan
from perennial.contracts.section import Section, TaskState

ENSEMBLE = "perennial.tasks.ensemble:Ensemble"
"""Task of a model that is the mean of several."""
Direction = Literal["maximize", "minimize"]
Advice = Literal["longer", "shorter", "regularise", "bug", "nothing"]
"""Advice for the next training; `nothing` also where the curve is too short to tell."""
KeptAs = tuple[Literal["best", "interval", "last"], ...]
"""Reason to keep a checkpoint: among the best, at a multiple of `keep_every_steps`, the newest."""
SignalKind = Literal["clipping", "exploding", "vanishing", "plateau", "oscillation", "idle_device"]
Limit = Literal["input-bound", "overhead-bound", "memory-bound", "compute-bound"]


AVERAGED = "averaged_"
"""Before the name of a metric: that of the weights' moving average, where a training has one."""


def both_names(metric: str) -> tuple[str, str]:
    """Return the names of a metric of the weights, and of their moving average."""
    return metric, f"{AVERAGED}{metric}"


class EvaluationPoint(Section):
    """The measurements at one evaluation."""

    step: int
    train_loss: float | None
    """Mean loss per example over the updates since the evaluation before; None when all of them
    were left out, so that the weights are still the same."""
    metrics: dict[str, float]
    """Task metrics and `loss` on the validation sample."""
    watched: Annotated[tuple[float, ...], Field(strict=False)] = ()  # a list in a line of JSON
    """Predictions for the watched examples, in their order; empty if one was not finite."""

    def better_of(self, metric: str, direction: Direction) -> float | None:
        """Return the better of the weights' metric and their moving average's; None without any."""
        found = [self.metrics[name] for name in both_names(metric) if name in self.metrics]
        return (max if direction == "maximize" else min)(found, default=None)


class WatchedExamples(Section):
    """A few examples of the validation sample whose predictions are kept at each evaluation."""

    rows: tuple[int, ...]
    """Positions in the validation split."""
    labels: tuple[float, ...]
    """Encoded labels; empty where an example has no single one."""
    quantity: str
    """What is kept of each prediction, for people."""


class StepPoint(Section):
    """The measurements of one logging interval."""

    step: int
    loss: float
    """Mean per example over the interval's global batches."""
    learning_rate: float
    gradient_norm: float
    """Before clipping, over all parameters; the interval's mean."""
    clipped_share: float = 0.0
    """Share of the interval's updates that clipping changed; about a tenth is healthy."""
    examples_per_second: float
    tokens_per_second: float | None = None
    """Positions of the sequences, padding included; None for tasks without tokens."""
    data_wait_share: float
    """Share of the interval's time spent waiting for the next batch."""
    update_ratio: float = 0.0
    """Length of the interval's last update divided by the length of the weights, over a fixed part
    of them; about 1e-3 is healthy, 1e-2 unstable, 1e-5 hardly learns."""
    memory_bytes: int = 0
    """Peak so far: of the device (GPU) or of the process (CPU), the first rank's."""
    flops_per_second: float | None = None
    """Arithmetic of all processes together; None when the model's cannot be counted."""
    utilization: float | None = None
    """Share of the devices' peak (MFU); None for devices whose peak is not known."""
    device_busy: float | None = None
    """Share of the moments before the point in which the first rank's GPU computed, as its driver
    reports it; None on CPUs, and where the driver does not report it."""


class MachinePoint(Section):
    """The load of the first rank's machine at a logging step, at most once a second."""

    step: int
    metrics: dict[str, float]
    """Under the names of MLflow's system metrics, whose units they end with."""


class Bottleneck(Section):
    """Bottleneck of a step, from a trace of a few."""

    verdict: Limit
    remedy: str
    """The option to change."""
    steps: int
    """Traced updates, of the first rank."""
    seconds_per_step: float
    """While tracing, which itself costs time."""
    data_wait_share: float
    overhead_share: float
    """Share of the time in which the device waited for the host (GPU), or in which operations were
    dispatched instead of computed, or none ran (CPU)."""
    computing_share: float
    """Share of the operations' time in matrix products, convolutions and attention."""
    operations: dict[str, float]
    """The largest, as shares of the operations' time."""
    trace: str = ""
    """File for Perfetto or chrome://tracing."""


class Signal(Section):
    """An episode of a training that its curves show."""

    kind: SignalKind
    from_step: int
    """The logged step at which its sign had shown."""
    to_step: int | None = None
    """The logged step at which it had gone; None if it was there at the end."""
    evidence: str
    """What was seen at its begin, with the values."""
    remedy: str
    """What the guides' troubleshooting maps advise."""

    @property
    def period(self) -> str:
        """Its steps, for people."""
        end = f"to {self.to_step:,}" if self.to_step else "to the end"
        return f"step {self.from_step:,} {end}"

    @property
    def finding(self) -> str:
        """Evidence and remedy in a line."""
        return f"{self.evidence} ({self.period}): {self.remedy}"


class CollectiveWaits(Section):
    """Waiting time of each process for the others, measured over a few steps."""

    step: int
    wait_seconds: tuple[float, ...]
    """Per step in collectives, by rank."""
    step_seconds: float
    slow_rank: int | None
    """The one that all others waited for, if one stood out."""


class TrainedPart(Section):
    """Steps of a training that one division of the work computed."""

    from_step: int
    """Updates done before it."""
    processes: int
    threads: int
    """Of each process."""
    strategy: str
    micro_batch_size: int
    device: str

    @property
    def title(self) -> str:
        """Description for people."""
        plural = "es" if self.processes > 1 else ""
        return f"{self.processes} process{plural} ({self.strategy}) on {self.device}"

    @property
    def division(self) -> str:
        """Description of all that decides in which order sums are rounded."""
        return f"{self.title}, passes of {self.micro_batch_size:,} rows"


def describe_parts(parts: Sequence[TrainedPart]) -> str:
    """Return who trained which steps, for people; empty if it was not recorded."""
    are_distinct = len({part.title for part in parts}) == len(parts)
    return ", ".join(
        (part.title if are_distinct else part.division)
        + (f" from step {part.from_step:,}" if part.from_step else "")
        for part in parts
    )


class Halving(Section):
    """Forward passes made smaller because one ran out of memory."""

    step: int
    """The update whose pass ran out of memory, counted from 1."""
    rank: int
    rows: int
    """Rows of the passes until then, at most."""
    next_rows: int
    """Rows of the passes from the last checkpoint on, at most."""


class CheckpointRecord(Section):
    """One committed checkpoint that was kept."""

    step: int
    uri: str
    metrics: dict[str, float]
    """Validation-sample metrics at its step."""
    kept_as: KeptAs


class TrainingResult(Artifact):
    """A finished training.

    File tree: `training.json`. The checkpoints lie in the object store at their `uri`.
    """

    file_name: ClassVar[str] = "training.json"

    fingerprint: str
    """Digest of all that determines the weights but for rounding: snapshot, task and its options,
    training section, code. Equal fingerprints mean the same training, which is resumed or reused,
    on any number of processes."""
    task: ImportPath
    options: dict[str, JsonValue]
    columns: TaskColumns
    task_state: TaskState
    """State that the task fitted on the training split."""
    initial: InitialModel | None = None
    """Weights that the training started with; None for random ones."""
    adapter: Adapter | None = None
    """The adapter that was trained; its checkpoints lack the initial weights. None without one."""
    teachers: Teachers | None = None
    """Versions whose predictions it learned from; None without distillation."""
    steps: int
    world_size: int
    strategy: str
    """The one that ran last: what was asked for, or what the plan chose."""
    parts: tuple[TrainedPart, ...] = ()
    """How the work was divided, in order; more than one: the training was resharded."""
    memory_plan: MemoryPlan | None = None
    """Memory plan of `auto`; None when a strategy was given."""
    num_parameters: int
    history: tuple[StepPoint, ...]
    evaluations: tuple[EvaluationPoint, ...]
    checkpoints: tuple[CheckpointRecord, ...]
    seconds: float
    """Time spent training, over all attempts."""
    num_resumes: int
    num_skipped: int = 0
    """Updates left out because loss or gradient was not finite."""
    num_rescaled: int = 0
    """Updates left out because float16 overflowed and its loss scale had to be halved; the first
    ones search for it."""
    num_rewinds: int = 0
    """Returns to a checkpoint because of a jump of the loss."""
    halvings: tuple[Halving, ...] = ()
    """How often passes were made smaller because memory ran out."""
    signals: tuple[Signal, ...] = ()
    """Episodes that the curves showed, in the order in which they began."""
    hints: tuple[str, ...] = ()
    """What would make it faster on its devices, as known before the first step."""
    watched: WatchedExamples | None = None
    """The examples of `EvaluationPoint.watched`."""
    turned_off: tuple[str, ...] = ()
    """What `training.simplified` turned off; empty without it, or where nothing was on."""
    collective_waits: tuple[CollectiveWaits, ...] = ()
    bottleneck: Bottleneck | None = None
    """Result of `training.profile`."""


class ScoredCandidate(Section):
    """One kept checkpoint, scored on the full validation split after training ended."""

    step: int
    uri: str
    metrics: dict[str, float]
    standard_error: float
    """Standard error of the selection metric, by bootstrap over blocks of time (else rows)."""
    kept_as: KeptAs
    averaged: bool = False
    """Its moving average of the weights, in the place of the weights."""
    members: tuple[int, ...] = ()
    """The steps whose weights it is the mean of; empty for the weights of one checkpoint. `step`
    is then the newest of them."""

    @property
    def is_plain(self) -> bool:
        """Whether these are the weights of its step, as they were trained."""
        return not (self.averaged or self.members)

    @property
    def title(self) -> str:
        """Name in reports."""
        if self.members:
            return f"mean of steps {', '.join(f'{step:,}' for step in self.members)}"
        return f"step {self.step:,}{', averaged' if self.averaged else ''}"


class Challenger(Artifact):
    """The selected checkpoint as one portable model.

    File tree: `challenger.json` (this value), `model.safetensors` (the weights, fp32),
    or above 5 GB its shards and `model.safetensors.index.json`. Those of an adapter that is not
    merged are the trained weights alone; the others are in the store, by the digests of `base`.
    Loaded by `perennial.engine.export.load_model`.
    """

    file_name: ClassVar[str] = "challenger.json"

    task: ImportPath
    options: dict[str, JsonValue]
    task_state: TaskState
    columns: TaskColumns
    training_fingerprint: str
    metric: str
    direction: Direction
    chosen_step: int
    chosen_averaged: bool = False
    """Whether the weights are that checkpoint's moving average."""
    chosen_members: tuple[int, ...] = ()
    """The steps whose weights were averaged, if these are the mean of several checkpoints."""
    candidates: tuple[ScoredCandidate, ...]
    reason: str
    """Reason of the choice, in a sentence."""
    diagnosis: tuple[str, ...]
    """Diagnosis of the curves, with advice."""
    advice: Advice = "nothing"
    """The most serious diagnosis, in a word."""
    next_steps: int | None = None
    """Proposed budget of the next training; None where none can be proposed."""
    signals: tuple[Signal, ...] = ()
    """Episodes of the training."""
    turned_off: tuple[str, ...] = ()
    """What `training.simplified` turned off: such a model is for debugging."""
    weights_sha256: str
    initial: InitialModel | None = None
    """Weights that the training started with; None for random ones."""
    adapter: Adapter | None = None
    """The adapter that was trained; None without one."""

    @property
    def base(self) -> InitialModel | None:
        """Return the weights that this folder lacks; None if it has all."""
        return self.initial if self.adapter is not None and not self.adapter.merge else None

    teachers: Teachers | None = None
    """Versions whose predictions it learned from; None without distillation."""
    champions: Champions | None = None
    """The champions that an ensemble was considered with; None without `[model.ensemble]`."""
    members: tuple[Origin, ...] = ()
    """The champions that are part of this model; empty unless it is an ensemble."""

    @property
    def taught_by(self) -> tuple[Origin, ...]:
        """Return the origins of its teachers."""
        return self.teachers.origins if self.teachers else ()

    @property
    def task_paths(self) -> tuple[ImportPath, ...]:
        """Return every task class that the model needs: of an ensemble, those of its members."""
        return tuple(dict.fromkeys((self.task, *(str(each["task"]) for each in self._parts))))

    @property
    def own_options(self) -> dict[str, JsonValue]:
        """Return the task's options: of an ensemble, those of the member that was trained."""
        options = self._parts[0]["options"] if self._parts else self.options
        return options if isinstance(options, dict) else {}

    @property
    def _parts(self) -> list[dict[str, JsonValue]]:
        found = self.options.get("members") if self.task == ENSEMBLE else None
        return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

    def version_fingerprint(self) -> str:
        """Return a digest that is equal for the same weights from the same training."""
        identity = f"{self.weights_sha256} {self.training_fingerprint}"
        return hashlib.sha256(identity.encode()).hexdigest()
