"""Trial: run its trainings, stop one that is behind, and record what became of it."""

import json
import logging
import shutil
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from pydantic import JsonValue, ValidationError

from perennial.contracts.environment import Environment
from perennial.contracts.errors import TrainingFailedError
from perennial.contracts.section import digest_of
from perennial.contracts.training import EvaluationPoint, StepPoint, TrainingResult
from perennial.contracts.user_code import RunStopped
from perennial.engine.handover import CURVES
from perennial.engine.job import RankFailure, TrainingJob
from perennial.studies.pruning import Pruned, best_until, evaluation_interval, prune, rungs
from perennial.studies.records import State, StudyPlan, Trial, TrialTraining
from perennial.studies.space import read_with
from perennial.training_jobs.attempts import run_to_end
from perennial.training_jobs.config import ResourcesSection, TrainModelConfig
from perennial.training_jobs.identity import is_finished, training_job
from perennial.training_jobs.launcher import Launcher, LocalLauncher, remove_encoded_data
from perennial.training_jobs.on_cluster import open_launcher

POLL_SECONDS = 0.5
TRIES = 2
"""A training that failed for a reason outside of the trial, such as a lost machine, has another."""
MEMORY = ("out of memory", "OutOfMemoryError", "MemoryError", "OOMKilled", "not enough memory")
OUTSIDE = ("OSError", "PermissionError", "FileNotFoundError", "ConnectionError", "TimeoutError")
"""Exceptions that say nothing about the hyperparameters."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Work:
    """A trial to run.

    Attributes:
        number: Its number.
        values: Its hyperparameters.
        seeds: One for each of its trainings.
        earlier: The trials that it may be compared with at a rung.
        candidate: For a confirmation, the trial that is trained again.
    """

    number: int
    values: Mapping[str, JsonValue]
    seeds: Sequence[int]
    earlier: Sequence[Trial] = ()
    candidate: int | None = None


class TrialFailedError(Exception):
    """A training of a trial ended without a result; `spent` is what it cost all the same."""

    def __init__(self, state: State, reason: str) -> None:
        super().__init__(reason)
        self.state = state
        self.spent: TrialTraining | None = None


class TrialRunner:
    """Runs trials of one study; several threads may run one each.

    `scratch` is a folder for what trials share on this machine; the caller removes it.
    """

    def __init__(
        self,
        plan: StudyPlan,
        resources: ResourcesSection,
        snapshot: Path,
        environment: Environment,
        scratch: Path,
    ) -> None:
        self._plan = plan
        self._resources = resources
        self._snapshot = snapshot
        # The parent run's id is not the trials' own.
        self._environment = replace(environment, tracking_run_id="")
        self._shared = SharedData(scratch)
        self._lock = threading.Lock()
        self._running: dict[str, threading.Lock] = {}
        self._trainings: list[RunningTraining] = []
        self._is_stopping = False

    def stop(self) -> None:
        """Stop all trainings at a checkpoint; for a signal handler, too."""
        self._is_stopping = True
        # A copy: other threads add and remove trainings meanwhile.
        for training in list(self._trainings):
            training.stop()

    def run(self, work: Work) -> Trial:
        """Run a trial to its end.

        Raises:
            RunStopped: the study is stopped; the trial continues when it is started again.
        """
        plan, trainings = self._plan, list[TrialTraining]()
        try:
            for seed in work.seeds:
                pruned, training = self._train(work, seed)
                trainings.append(training)
                if pruned is not None:
                    return self._ended(work, "pruned", trainings, pruned.reason)
        except TrialFailedError as error:
            logger.warning("trial=%d %s: %s", work.number, error.state, error)
            trainings += [error.spent] if error.spent else []
            return self._ended(work, error.state, trainings, str(error))
        if any(training.value is None for training in trainings):
            reason = f"no evaluation has a finite {plan.metric}"
            return self._ended(work, "infeasible", trainings, reason)
        return self._ended(work, "complete", trainings)

    def _ended(
        self, work: Work, state: State, trainings: Sequence[TrialTraining], reason: str = ""
    ) -> Trial:
        values = [training.value for training in trainings if training.value is not None]
        is_valued = state in ("complete", "pruned") and bool(values)
        return Trial(
            number=work.number,
            stage=self._plan.stage_of(work.number),
            values=dict(work.values),
            candidate=work.candidate,
            state=state,
            reason=reason,
            value=fmean(values) if is_valued else None,
            trainings=tuple(trainings),
        )

    def _train(self, work: Work, seed: int) -> tuple[Pruned | None, TrialTraining]:
        """Train once, or use an equal training again; return it, and why it was pruned."""
        try:
            settings = trial_settings(self._plan, self._resources, work.values, seed)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise TrialFailedError("infeasible", f"{place}: {first['msg']}") from error
        job = training_job(settings, self._snapshot, self._environment)
        with self._alone(job.fingerprint):
            if is_finished(job):
                remove_encoded_data(job)
            else:
                try:
                    pruned = self._run(work, settings, job, tries=TRIES)
                except TrialFailedError as error:
                    error.spent = _spent(job, seed)
                    raise
                if pruned is not None:
                    return pruned, self._record(job, seed, pruned)
            result = TrainingResult.read(job.root)
        # Also of a training that ended before the watcher looked: timing must not decide.
        pruned = self._prune(work, settings, result.evaluations)
        return pruned, self._record(job, seed, pruned, result)

    def _record(
        self,
        job: TrainingJob,
        seed: int,
        pruned: Pruned | None,
        result: TrainingResult | None = None,
    ) -> TrialTraining:
        """Return a training's record, cut at its rung if it was pruned: no timing enters it.

        A training that was stopped has no result: its points are in its file of curves.
        """
        last = pruned.step if pruned else job.training.steps
        if result is not None:
            points, history, limit = result.evaluations, result.history, result.bottleneck
            seconds, processes = result.seconds, result.world_size
        else:
            points, history = read_curves(job.logs / CURVES)
            seconds = _seconds_of(job, history, last)
            processes, limit = job.num_processes, None
        cut = tuple(point for point in points if point.step <= last)
        return TrialTraining(
            seed=seed,
            fingerprint=job.fingerprint,
            value=best_until(cut, last, self._plan.metric, self._plan.direction),
            evaluations=cut,
            losses=tuple((point.step, point.loss) for point in history if point.step <= last),
            seconds=seconds,
            device_seconds=seconds * processes,
            limit=limit.verdict if limit else "",
        )

    @contextmanager
    def _alone(self, fingerprint: str) -> Iterator[None]:
        """Wait for an equal training of another trial, whose result is then used again."""
        with self._lock:
            own = self._running.setdefault(fingerprint, threading.Lock())
        with own:
            yield

    def _run(
        self, work: Work, settings: TrainModelConfig, job: TrainingJob, tries: int
    ) -> Pruned | None:
        """Run a training to its end, or until it is pruned."""
        training = RunningTraining(open_launcher(settings.resources, self._environment))
        key = encoding_key(job)
        if isinstance(training.launcher, LocalLauncher):
            job = job.model_copy(update={"shared": str(self._shared.folder(key))})
        watcher = threading.Thread(target=self._watch, args=(work, settings, job, training))
        self._trainings.append(training)
        try:
            # `stop` may have run before this training was in the list.
            if self._is_stopping:
                training.stop()
            watcher.start()
            restarts = settings.resources.max_restarts
            with self._shared.used(key):
                run_to_end(job, training.launcher, restarts, training.stopped)
        except RunStopped:
            if training.pruned is None:
                raise
            return training.pruned
        except TrainingFailedError as error:
            state, reason = classify(job, error)
            if state == "infeasible" or tries == 1:
                raise TrialFailedError(state, reason) from error
            logger.warning("trial=%d is tried again: %s", work.number, reason)
        finally:
            training.ended.set()
            watcher.join()
            self._trainings.remove(training)
        return None if is_finished(job) else self._run(work, settings, job, tries - 1)

    def _watch(
        self,
        work: Work,
        settings: TrainModelConfig,
        job: TrainingJob,
        training: "RunningTraining",
    ) -> None:
        """Stop the training at the first rung at which it is behind."""
        if self._plan.study.pruning == "off":
            return
        while not training.ended.wait(POLL_SECONDS):
            points, _ = read_curves(job.logs / CURVES)
            training.pruned = self._prune(work, settings, points)
            if training.pruned is not None:
                logger.info("trial=%d %s", work.number, training.pruned.reason)
                training.stop()
                return

    def _prune(
        self, work: Work, settings: TrainModelConfig, points: Sequence[EvaluationPoint]
    ) -> Pruned | None:
        # Rungs compare the first training of each trial.
        if settings.training.seed != work.seeds[0]:
            return None
        steps, every = settings.training.steps, evaluation_interval(self._plan)
        places = rungs(steps, every, self._plan.study.reduction)
        known = {point.step: point for point in points}
        return prune(self._plan, places, work.number, known, work.earlier)


@dataclass(eq=False)
class RunningTraining:
    """A training that a thread waits for, and others may stop."""

    launcher: Launcher
    stopped: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    pruned: Pruned | None = None

    def stop(self) -> None:
        """Stop it at a checkpoint."""
        self.stopped.set()
        self.launcher.stop()


class SharedData:
    """Folders with encoded splits, one for each kind of encoding, counted while they are used.

    Trials that vary the training alone share one. Those that vary the task's options may encode
    differently: their folder is removed when no trial uses it, all but the first, the baseline's.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._users: Counter[str] = Counter()
        self._first = ""

    def folder(self, key: str) -> Path:
        """Return the folder of an encoding."""
        return self._root / key

    @contextmanager
    def used(self, key: str) -> Iterator[None]:
        """Keep a folder while the block runs."""
        with self._lock:
            self._first = self._first or key
            self._users[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._users[key] -= 1
                if not self._users[key] and key != self._first:
                    shutil.rmtree(self.folder(key), ignore_errors=True)


def trial_settings(
    plan: StudyPlan, resources: ResourcesSection, values: Mapping[str, JsonValue], seed: int
) -> TrainModelConfig:
    """Return the settings of a trial's training.

    Of `resources`, the contract's, only what trials do not share enters: where trainings run.

    Raises:
        pydantic.ValidationError: the contract refuses the values.
    """
    counted = plan.contract["resources"]
    where = resources.model_dump(mode="json") | (counted if isinstance(counted, dict) else {})
    document = {**plan.contract, "resources": where}
    return read_with(TrainModelConfig, document, {**values, "training.seed": seed})


def _spent(job: TrainingJob, seed: int) -> TrialTraining:
    """Return the record of a training without a result: its cost, up to the last logged step."""
    _, history = read_curves(job.logs / CURVES)
    seconds = _seconds_of(job, history, history[-1].step if history else 0)
    return TrialTraining(
        seed=seed,
        fingerprint=job.fingerprint,
        value=None,
        seconds=seconds,
        device_seconds=seconds * job.num_processes,
    )


def _seconds_of(job: TrainingJob, history: Sequence[StepPoint], last: int) -> float:
    """Return how long steps took by the logged speed: interruptions do not count."""
    rates = [point.examples_per_second for point in history]
    return last * job.training.global_batch_size / fmean(rates) if rates else 0.0


def encoding_key(job: TrainingJob) -> str:
    """Return the digest of all that determines a training's encoded data."""
    named = {name: job.contract[name] for name in ("snapshot", "model", "code")}
    return digest_of(named)


def classify(job: TrainingJob, error: TrainingFailedError) -> tuple[State, str]:
    """Return whether a failed training is the result of its hyperparameters, and why it failed.

    The baseline has run with the same code and data: an exception of the code, such as a loss that
    is not finite or sizes that do not fit, comes from what the trial changed. A process that was
    killed, a hang or a service that did not answer does not, unless memory ran out.
    """
    reason = " ".join(error.problem.split())
    text = f"{error.problem}\n{error.evidence}"
    if any(sign in text for sign in MEMORY):
        return "infeasible", f"out of memory: {reason}"
    failure = RankFailure.first_of(job.errors)
    if failure is None or failure.is_consequence or failure.is_hang or failure.is_outage:
        return "failed", reason
    return ("failed" if failure.type in OUTSIDE else "infeasible"), reason


def read_curves(file: Path) -> tuple[tuple[EvaluationPoint, ...], tuple[StepPoint, ...]]:
    """Return the evaluations and logged points of a training's file of JSON lines, by their steps.

    The file may still grow; a point that a resumed training measured again is the later one.
    """
    evaluations: dict[int, EvaluationPoint] = {}
    history: dict[int, StepPoint] = {}
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    for line in lines:
        # The training may still be writing its last line.
        if not line.endswith(b"\n"):
            break
        point = json.loads(line)
        match point.pop("kind"):
            case "evaluation":
                evaluations[point["step"]] = EvaluationPoint.model_validate(point)
            case "step":
                history[point["step"]] = StepPoint.model_validate(point)
    return (
        tuple(evaluations[step] for step in sorted(evaluations)),
        tuple(history[step] for step in sorted(history)),
    )
