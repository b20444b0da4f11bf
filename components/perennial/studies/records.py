"""Records of a study: its plan, one file per trial, the confirmations, and what follows from them.

In the object store under `studies/<model>/<first 16 digits of the study's digest>/`.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from perennial.contracts.artifact import Artifact
from perennial.contracts.section import Section, digest_of
from perennial.contracts.training import Direction, EvaluationPoint
from perennial.studies.config import StudySection

Stage = Literal["explore", "exploit", "confirm"]
ADAPTIVE = ("tpe", "gp")
"""Samplers whose trials depend on the results of earlier ones."""
State = Literal["complete", "pruned", "infeasible", "failed"]
"""How a trial ended. `infeasible`: its hyperparameters made the loss diverge or memory run out,
which is a result. `failed`: for another reason, such as a lost machine."""


class StudyPlan(Artifact):
    """All that determines a study's trials.

    File tree: `study.json`. The digest of all but the goal's words names the study.
    """

    file_name: ClassVar[str] = "study.json"

    model: str
    study: StudySection
    contract: dict[str, JsonValue]
    """The resolved contract that the trials vary, without its `study` section."""
    baseline: dict[str, JsonValue] = Field(default_factory=dict)
    """Option → value in the contract, or the task's default, of each hyperparameter that varies and
    of what one is tied to."""
    metric: str
    direction: Direction
    snapshot: str
    """Digest of the data."""
    code: str
    """Digest of the task's code."""
    initial: dict[str, JsonValue] = Field(default_factory=dict)
    """Identity of the weights that trials start with; empty for random ones."""
    teachers: dict[str, JsonValue] = Field(default_factory=dict)
    """Identity of the versions that trials learn from; empty without distillation."""

    @cached_property
    def study_digest(self) -> str:
        """Return the digest that names the study.

        Options at their defaults do not enter it, so that a later version, which has more of them,
        finds a stored study again.
        """
        study = self.study.model_copy(update={"goal": ""})
        named = self.model_copy(update={"study": study})
        return digest_of(named.model_dump(mode="json", exclude_defaults=True))

    @property
    def prefix(self) -> str:
        """Return the key of the study's folder in the object store."""
        return f"studies/{self.model}/{self.study_digest[:16]}"

    @property
    def last_search(self) -> int:
        """Return the number of the last trial of the search; confirmations come after it."""
        return self.study.trials + (self.study.exploit.trials if self.study.exploit else 0)

    def stage_of(self, number: int) -> Stage:
        """Return the stage of a trial; the baseline, trial 0, belongs to the first."""
        if number > self.last_search:
            return "confirm"
        return "explore" if number <= self.study.trials else "exploit"

    def first_of(self, stage: Stage) -> int:
        """Return the number of a stage's first trial."""
        study = self.study
        return {"explore": 0, "exploit": study.trials + 1, "confirm": self.last_search + 1}[stage]

    def needed(self, number: int) -> range:
        """Return the trials that must have ended before one of the search may begin.

        All of them are known to it, and no others, whenever they ended.
        """
        study, stage = self.study, self.stage_of(number)
        sampler = (
            study.sampler if stage == "explore" or not study.exploit else study.exploit.sampler
        )
        # Of the trials before it, the newest `parallel - 1` may still run when it starts.
        if sampler in ADAPTIVE or study.pruning != "off":
            return range(max(number - study.parallel + 1, self.first_of(stage) or min(number, 1)))
        return range(self.first_of(stage) or min(number, 1))

    def rank(self, trial: "Trial") -> tuple[float, int]:
        """Return the key that sorts usable trials from best to worst."""
        if trial.value is None:
            raise ValueError(f"trial {trial.number} has no value")
        return (trial.value if self.direction == "minimize" else -trial.value), trial.number

    def search_seed(self, index: int) -> int:
        """Return the seed of a trial's training: the same for all trials.

        The first is the study's own: with `seed` of the contract, the baseline is the training that
        `perennial run` makes, and is used again.
        """
        return self.study.seed if index == 0 else self._seed(f"search {index}")

    def confirm_seed(self, index: int) -> int:
        """Return the seed of a confirmation: fresh, and the same for all candidates."""
        return self._seed(f"confirm {index}")

    def _seed(self, use: str) -> int:
        text = f"{self.study.seed} {use}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") % 2**31


class TrialTraining(Section):
    """One training of a trial: one seed."""

    seed: int
    fingerprint: str
    """Names the training's folder: an equal training, of a run as well, is used again."""
    value: float | None
    """The best of the metric over the evaluations, of the weights or their moving average; None if
    there is none that is finite."""
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
    source: str = ""
    """The tool that proposed its values, such as `katib`; empty if it was the plan."""
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

    @property
    def device_seconds(self) -> float:
        """Return seconds times processes, of all its trainings."""
        return sum(training.device_seconds for training in self.trainings)

    @property
    def last_step(self) -> int:
        """Return the step of the last evaluation of its first training; 0 without one."""
        points = self.trainings[0].evaluations if self.trainings else ()
        return points[-1].step if points else 0


def summarize_trials(plan: StudyPlan, trials: Sequence[Trial]) -> str:
    """Return one line: how many trials ended how, the best one and the baseline."""
    search = [trial for trial in trials if trial.stage != "confirm"]
    states = Counter(trial.state for trial in search)
    ends = ", ".join(f"{number} {state}" for state, number in states.items())
    usable = sorted((trial for trial in search if trial.is_usable), key=plan.rank)
    found = f"{len(search)} trials: {ends or 'none ended'}"
    if usable:
        found += f"; best {plan.metric} {usable[0].value:.4g} (trial {usable[0].number})"
        found += f", baseline {search[0].value:.4g}"
    confirmed = len(trials) - len(search)
    return f"{found}; {confirmed} confirmations" if confirmed else found
