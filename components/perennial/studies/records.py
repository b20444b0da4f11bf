"""Records of a study: its plan, one file per trial, the confirmations, and what follows from them.

In the object store under `studies/<model>/<first 16 digits of the study's digest>/`.
"""

from typing import ClassVar, Literal

from pydantic import JsonValue

from perennial.contracts.artifact import Artifact
from perennial.contracts.section import Section
from perennial.contracts.training import Direction, EvaluationPoint
from perennial.studies.config import StudySection

Stage = Literal["explore", "exploit", "confirm"]
State = Literal["complete", "pruned", "infeasible", "failed"]
"""How a trial ended. `infeasible`: its hyperparameters made the loss diverge or memory run out,
which is a result. `failed`: for another reason, such as a lost machine."""
Decision = Literal["adopt", "reject", "inconclusive"]


class StudyPlan(Artifact):
    """All that determines a study's trials.

    File tree: `study.json`. Its digest names the study.
    """

    file_name: ClassVar[str] = "study.json"

    model: str
    study: StudySection
    contract: dict[str, JsonValue]
    """The resolved contract that the trials vary, without its `study` section."""
    metric: str
    direction: Direction
    snapshot: str
    """Digest of the data."""
    code: str
    """Digest of the task's code."""


class TrialTraining(Section):
    """One training of a trial: one seed."""

    seed: int
    fingerprint: str
    """Names the training's folder: an equal training, of a run as well, is used again."""
    value: float | None
    """The best of the metric over the evaluations; None if there is none that is finite."""
    evaluations: tuple[EvaluationPoint, ...] = ()
    losses: tuple[tuple[int, float], ...] = ()
    """Step and mean training loss, at the logging interval."""
    seconds: float = 0.0
    device_seconds: float = 0.0
    """Seconds times processes."""
    limit: str = ""
    """The bottleneck of its steps, if it was profiled: `compute-bound`, `input-bound`, …"""


class Trial(Artifact):
    """One point of the search space and its result.

    File tree: `trials/<number>.json`; appears when the trial has ended.
    """

    file_name: ClassVar[str] = "trial.json"

    number: int
    """From 0; trial 0 is the baseline: the contract's own values (with `fixed`)."""
    stage: Stage
    values: dict[str, JsonValue]
    """Option → value of the dimensions that have a meaning in this trial."""
    candidate: int | None = None
    """For `confirm`: the trial that is trained again with a fresh seed."""
    state: State
    reason: str = ""
    """Why it did not complete."""
    value: float | None
    """Mean over its trainings of their best value; None unless it is complete or pruned."""
    trainings: tuple[TrialTraining, ...] = ()

    @property
    def is_usable(self) -> bool:
        """Whether its value can be compared with others of the same length."""
        return self.state == "complete" and self.value is not None
