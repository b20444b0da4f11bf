"""Driver: takes trial after trial of a study until all have ended; several drivers may share one.

What a trial is depends on the plan and on earlier trials alone, so that it does not matter which
driver runs it, when, or after how many interruptions.
"""

import logging
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import fmean
from typing import Protocol

from perennial.contracts.errors import PerennialError
from perennial.contracts.user_code import RunStopped
from perennial.engine.job import EXIT_INTERRUPTED
from perennial.studies.analysis.search import MOST_FINALISTS, finalists
from perennial.studies.records import Stage, StudyPlan, Trial
from perennial.studies.sampling import propose, space_of
from perennial.studies.store import StudyStore
from perennial.studies.trial import Work

WAIT_SECONDS = 1.0
"""How often trials of other drivers are looked for; own ones are noticed at once."""
SECONDS_PER_HOUR = 3600
logger = logging.getLogger(__name__)


class Runner(Protocol):
    """Runs trials."""

    def run(self, work: Work) -> Trial:
        """Run a trial to its end."""

    def stop(self) -> None:
        """Stop the trials that run; each of them raises `RunStopped`."""


class Driver:
    """Runs the trials of a study.

    `on_end(trial, ended, total)` is called with each trial that ended, how many have, and how many
    will have at the end.
    """

    def __init__(
        self, store: StudyStore, runner: Runner, on_end: Callable[[Trial, int, int], None]
    ) -> None:
        self._store = store
        self._plan: StudyPlan = store.plan
        self._runner = runner
        self._on_end = on_end
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._failure: BaseException | None = None
        is_grid = self._plan.study.sampler == "grid"
        self._explored = len(space_of(self._plan).grid()) if is_grid else self._plan.study.trials

    def run(self, slots: int) -> None:
        """Run trials, so many at a time, until all of the study have ended.

        Raises:
            PerennialError: the baseline failed, or the budget suffices for no trial.
            RunStopped: the study was stopped; it continues when it is started again.
        """
        with self._store.renewing(), ThreadPoolExecutor(slots) as threads:
            for thread in [threads.submit(self._work) for _ in range(slots)]:
                thread.result()
        self._stopped.set()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Stop at once, with checkpoints; called by a signal handler."""
        self._end(RunStopped(EXIT_INTERRUPTED))

    def _end(self, failure: BaseException) -> None:
        """Stop the trials that run at a checkpoint; `run` raises the first failure."""
        self._failure = self._failure or failure
        self._stopped.set()
        self._runner.stop()

    def _work(self) -> None:
        while (work := self._take()) is not None:
            try:
                self._finish(self._runner.run(work))
            except BaseException as error:  # it ends the study, in the main thread
                self._end(error)
                self._store.release(work.number)
            finally:
                with self._changed:
                    self._changed.notify_all()

    def _finish(self, trial: Trial) -> None:
        plan = self._plan
        if trial.number == 0 and not trial.is_usable:
            raise PerennialError(
                f"the baseline of the study did not complete: it is {trial.state}",
                evidence=trial.reason,
                action="make `perennial run` work with this contract and the study's fixed values "
                "first",
            )
        last = self._store.end_of(trial.stage)
        if last is not None and trial.number > last:
            logger.info("trial=%d ended after its stage, and does not count", trial.number)
            self._store.release(trial.number)
            return
        held = self._store.finish(trial)
        value = "" if held.value is None else f" {plan.metric}={held.value:.6g}"
        logger.info("trial=%d stage=%s %s%s", held.number, held.stage, held.state, value)
        with self._changed:
            self._on_end(held, *self._count_trials())

    def _take(self) -> Work | None:
        """Wait for a trial that may start, claim it; None when there is none any more."""
        with self._changed:
            while not self._stopped.is_set():
                try:
                    work, is_over = self._choose()
                except BaseException as error:
                    self._end(error)
                    return None
                if work is not None:
                    return work
                if is_over:
                    return None
                self._changed.wait(WAIT_SECONDS)
        return None

    def _choose(self) -> tuple[Work | None, bool]:
        """Return the next trial, claimed; and whether all have ended."""
        plan, store = self._plan, self._store
        for stage in ("explore", "exploit"):
            is_complete = True
            for number in self._numbers(stage):
                if store.trial(number) is not None:
                    continue
                is_complete = False
                earlier = self._ended(plan.needed(number))
                if earlier is None:  # nor do later trials have theirs
                    break
                # Whether trials before it that only seem to run are in the budget is not known.
                is_last = self._have_ended(stage, number)
                if not is_last and not self._is_in_budget(stage, number):
                    break
                if not self._claim(stage, number):  # it runs
                    continue
                try:
                    if self._is_in_budget(stage, number):
                        return self._search_work(number, earlier), False
                    if is_last:
                        store.cut(stage, number - 1)
                except PerennialError:
                    store.release(number)
                    raise
                store.release(number)  # only now: nobody claims it before the cut
                # Another driver may have cut it elsewhere: read the numbers again.
                return self._choose()
            if not is_complete:
                return None, False
        return self._confirmation()

    def _have_ended(self, stage: Stage, number: int) -> bool:
        """Whether all trials of a stage before a trial have ended."""
        before = range(self._plan.first_of(stage), number)
        return len(self._store.trials(before)) == len(before)

    def _claim(self, stage: Stage, number: int) -> bool:
        if not self._store.claim(number):
            return False
        # The stage may have been cut between the choice of this trial and its claim.
        last = self._store.end_of(stage)
        if last is not None and number > last:
            self._store.release(number)
            return False
        return True

    def _search_work(self, number: int, earlier: list[Trial]) -> Work:
        plan = self._plan
        seeds = [plan.search_seed(index) for index in range(plan.study.seeds_per_trial)]
        return Work(number, propose(plan, number, earlier), seeds, earlier)

    def _confirmation(self) -> tuple[Work | None, bool]:
        """Return the next confirmation, claimed; and whether all have ended."""
        plan, store = self._plan, self._store
        work, is_over = None, True
        for place, (candidate, index) in enumerate(self._confirmations()):
            number = plan.first_of("confirm") + place
            if store.trial(number) is not None:
                continue
            is_over = False
            if store.claim(number):
                trained = store.trial(candidate)
                values = trained.values if trained is not None else {}
                work = Work(number, values, [plan.confirm_seed(index)], candidate=candidate)
                break
        return work, is_over

    @property
    def _most_candidates(self) -> int:
        """The most trials that are confirmed, the baseline among them."""
        return 1 + (MOST_FINALISTS if self._plan.study.scientific else 1)

    def _confirmations(self) -> list[tuple[int, int]]:
        """Return candidate and seed index of each confirmation."""
        chosen = finalists(self._plan, self.search_trials())
        if not chosen:
            return []
        return [
            (candidate, index)
            for index in range(self._plan.study.confirmations)
            for candidate in (0, *chosen)
        ]

    def search_trials(self) -> list[Trial]:
        """Return the trials of the search that have ended and count."""
        return [
            trial
            for stage in ("explore", "exploit")
            for trial in self._store.trials(self._numbers(stage))
        ]

    def all_trials(self) -> list[Trial]:
        """Return all trials that have ended and count, in the order of their numbers."""
        first = self._plan.first_of("confirm")
        confirmed = self._store.trials(range(first, first + len(self._confirmations())))
        return self.search_trials() + confirmed

    def _numbers(self, stage: Stage) -> range:
        """Return the numbers of a stage's trials; fewer where a grid or the budget ends it."""
        plan = self._plan
        first = plan.first_of(stage)
        last = plan.last_search
        if stage == "explore":
            last = min(plan.study.trials, self._explored)
        if plan.study.device_hours is not None:
            cut = self._store.end_of(stage)
            last = last if cut is None else cut
        return range(first, last + 1)

    def _ended(self, numbers: range) -> list[Trial] | None:
        """Return the trials that a trial needs; None if one of them has not ended."""
        found: list[Trial] = []
        for stage in ("explore", "exploit"):
            own = self._numbers(stage)
            wanted = range(max(numbers.start, own.start), min(numbers.stop, own.stop))
            trials = self._store.trials(wanted)
            if len(trials) < len(wanted):
                return None
            found += trials
        return found

    def _is_in_budget(self, stage: Stage, number: int) -> bool:
        """Whether a trial may start: the budget suffices, or a stage that has ended includes it.

        A stage includes all trials that began before its end, so that each that ran counts.
        """
        if not number or self._plan.study.device_hours is None:
            return True
        # It may have ended before this trial since the trial was claimed.
        last = self._store.end_of(stage)
        if last is not None:
            return number <= last
        later = range(number + 1, self._numbers(stage).stop)
        return self._is_affordable(stage, number) or bool(self._store.trials(later))

    def _is_affordable(self, stage: Stage, number: int) -> bool:
        """Whether the budget suffices for a trial of a stage, and the confirmations after it.

        Trials of its stage before it have ended or run. The first stage leaves the second one its
        share.

        Raises:
            PerennialError: it does not suffice for a single trial.
        """
        study = self._plan.study
        hours = study.device_hours or math.inf
        ended = self.search_trials()
        baseline = ended[0].device_seconds
        candidates = self._most_candidates
        each = baseline / study.seeds_per_trial
        reserved = candidates * study.confirmations * each
        budget = hours * SECONDS_PER_HOUR - reserved
        # The least to compare is the baseline and one more trial, which is taken to cost as much.
        if budget < 2 * baseline:
            enough = (reserved + 2 * baseline) / SECONDS_PER_HOUR
            raise PerennialError(
                f"study.device_hours = {hours:g} does not suffice for a single trial",
                evidence=f"the baseline took {baseline / SECONDS_PER_HOUR:.3g} device hours, and "
                f"{candidates * study.confirmations} confirmations at the end need "
                f"{reserved / SECONDS_PER_HOUR:.3g}",
                action=f"set device_hours >= {enough:.2g}, or shorten the trials with study.steps",
            )
        if stage == "explore" and study.exploit is not None:
            budget *= study.trials / (study.trials + study.exploit.trials)
        # Each trial that runs, and this one, will cost as much as those that have ended on average.
        seconds = [trial.device_seconds for trial in ended]
        known = sum(trial.stage == stage and trial.number < number for trial in ended)
        running = number - self._plan.first_of(stage) - known
        return sum(seconds) + (running + 1) * fmean(seconds) <= max(budget, 2 * baseline)

    def _count_trials(self) -> tuple[int, int]:
        """Return how many trials have ended, and of how many; an upper bound during the search."""
        plan = self._plan
        search = [number for stage in ("explore", "exploit") for number in self._numbers(stage)]
        ended = sum(self._store.trial(number) is not None for number in search)
        if ended < len(search):
            most = self._most_candidates * plan.study.confirmations
            return ended, len(search) + most
        count = len(self._confirmations())
        first = plan.first_of("confirm")
        confirmed = len(self._store.trials(range(first, first + count)))
        return ended + confirmed, len(search) + count
