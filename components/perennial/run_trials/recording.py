"""Recording: each trial as a child run in MLflow, with all its hyperparameters."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType

from perennial.clients.tracking import Tracking, open_tracking
from perennial.contracts.environment import Environment
from perennial.studies.records import StudyPlan, Trial
from perennial.studies.trial import trial_settings
from perennial.training_jobs.config import ResourcesSection, flatten_options

PARENT_TAG = "mlflow.parentRunId"
STUDY_TAG = "perennial.study"


class TrialRecorder:
    """Writes to MLflow in a thread: trials need not wait for it."""

    def __init__(
        self, environment: Environment, plan: StudyPlan, resources: ResourcesSection
    ) -> None:
        self._environment = environment
        self._plan = plan
        self._resources = resources
        self._thread = ThreadPoolExecutor(1)
        self._parent = self._thread.submit(self._open)
        self._records: dict[int, Future[None]] = {}

    def __enter__(self) -> "TrialRecorder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # What is cancelled here is recorded by the next attempt, in `finish`.
        self._thread.shutdown(cancel_futures=error is not None)

    def record(self, trial: Trial) -> None:
        """Record a trial; a record that is there already stays as it is."""
        if trial.number not in self._records:
            self._records[trial.number] = self._thread.submit(self._record, trial)

    def finish(self, trials: Sequence[Trial]) -> None:
        """Record those trials that other attempts ended, and wait until all are recorded.

        Raises:
            PerennialError: MLflow does not answer.
        """
        for trial in trials:
            self.record(trial)
        self._parent.result()
        for written in self._records.values():
            written.result()

    def _open(self) -> Tracking:
        parent = open_tracking(self._environment, self._plan.model)
        study = self._plan.study
        parent.log_params(
            {
                "study.goal": study.goal,
                "study.digest": self._plan.study_digest[:16],
                "study.metric": self._plan.metric,
                "study.sampler": study.sampler,
            }
        )
        return parent

    def _record(self, trial: Trial) -> None:
        plan = self._plan
        parent = self._parent.result()
        name = f"{plan.study_digest[:12]}-{trial.number:04d}"
        # An id of its own, always the same: whoever records the trial again joins its MLflow run.
        run = replace(self._environment, run_id=name, tracking_run_id="")
        child = open_tracking(run, plan.model)
        child.set_tags(
            {
                PARENT_TAG: parent.run_id,
                STUDY_TAG: plan.study_digest,
                "perennial.trial": str(trial.number),
                "perennial.trial.stage": trial.stage,
                "perennial.trial.state": trial.state,
                **({"perennial.trial.reason": trial.reason} if trial.reason else {}),
            }
        )
        seed = trial.trainings[0].seed if trial.trainings else plan.search_seed(0)
        child.log_params(self._options(trial, seed))
        if trial.value is not None:
            child.log_metrics({plan.metric: trial.value})
        for index, training in enumerate(trial.trainings):
            points = [
                (point.step, value)
                for point in training.evaluations
                if (value := point.better_of(plan.metric, plan.direction)) is not None
            ]
            name = f"validation/{plan.metric}" + (f".{index + 1}" if index else "")
            child.log_curve(name, points)
        child.finish() if trial.state in ("complete", "pruned") else child.fail()

    def _options(self, trial: Trial, seed: int) -> dict[str, object]:
        try:
            return flatten_options(trial_settings(self._plan, self._resources, trial.values, seed))
        except ValueError:  # the contract refused the values, which is why it is infeasible
            return dict(trial.values)
