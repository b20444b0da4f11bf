"""What `train_model` leaves behind and what `select_checkpoint` makes of it."""

from typing import ClassVar, Literal

from pydantic import JsonValue

from components.contracts.artifact import Artifact
from components.contracts.data import ImportPath, TaskColumns
from components.contracts.section import Section

Direction = Literal["maximize", "minimize"]


class EvaluationPoint(Section):
    """The measurements at one evaluation."""

    step: int
    train_loss: float
    """Mean loss per example over the updates since the evaluation before; that evaluation's own
    value, when all of them were left out."""
    metrics: dict[str, float]
    """Task metrics and `loss` on the validation sample."""


class StepPoint(Section):
    """The measurements of one logging interval."""

    step: int
    loss: float
    """Mean per example over the interval's global batches."""
    learning_rate: float
    gradient_norm: float
    """Before clipping, over all parameters; the interval's mean."""
    examples_per_second: float
    data_wait_share: float
    """Share of the interval's time spent waiting for the next batch."""


class CheckpointRecord(Section):
    """One committed checkpoint that was kept."""

    step: int
    uri: str
    metrics: dict[str, float]
    """Validation-sample metrics at its step."""
    kept_as: tuple[Literal["best", "last"], ...]


class TrainingResult(Artifact):
    """A finished training.

    File tree: `training.json`. The checkpoints lie in the object store at their `uri`.
    """

    file_name: ClassVar[str] = "training.json"

    fingerprint: str
    """Digest of all that determines the weights: snapshot, task and its options, training
    section, code. Equal fingerprints mean the same training, which is resumed or reused."""
    task: ImportPath
    options: dict[str, JsonValue]
    columns: TaskColumns
    task_state: dict[str, JsonValue]
    """What the task fitted on the training split."""
    steps: int
    world_size: int
    strategy: str
    num_parameters: int
    history: tuple[StepPoint, ...]
    evaluations: tuple[EvaluationPoint, ...]
    checkpoints: tuple[CheckpointRecord, ...]
    seconds: float
    """Time spent training, over all attempts."""
    num_resumes: int


class ScoredCandidate(Section):
    """One kept checkpoint, scored on the full validation split after training ended."""

    step: int
    uri: str
    metrics: dict[str, float]
    standard_error: float
    """Of the selection metric, by bootstrap over blocks of time (or rows without a time)."""
    kept_as: tuple[Literal["best", "last"], ...]


class Challenger(Artifact):
    """The selected checkpoint as one portable model.

    File tree: `challenger.json` (this value), `model.safetensors` (the weights, fp32, full).
    Loaded by `components.engine.export.load_model`.
    """

    file_name: ClassVar[str] = "challenger.json"

    task: ImportPath
    options: dict[str, JsonValue]
    task_state: dict[str, JsonValue]
    columns: TaskColumns
    training_fingerprint: str
    metric: str
    direction: Direction
    chosen_step: int
    candidates: tuple[ScoredCandidate, ...]
    reason: str
    """Why this one, in a sentence."""
    diagnosis: tuple[str, ...]
    """What the curves say, and the advice that follows."""
    weights_sha256: str
