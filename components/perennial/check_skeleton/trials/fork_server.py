"""Fork server: fork the ranks of trials from a process that has only imported modules.

    python -m perennial.check_skeleton.trials.fork_server FOLDER PARENT

The process that examines a task has run PyTorch's and Polars' threads, which a fork would lose; a
fresh interpreter for every rank would spend seconds importing. Where forks of a process that only
imported are safe, macOS among them, this costs one import for all trials.
"""

import math
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from multiprocessing.context import ForkProcess
from pathlib import Path

from perennial.check_skeleton.trials.plan import PLAN, Plan, Trial, job_of, place_of
from perennial.check_skeleton.trials.rank import run_rank
from perennial.check_skeleton.trials.rendezvous_check import rendezvous_problem
from perennial.contracts.artifact import write_atomically

PROBLEM = "problem.txt"
ENDED = "ended.txt"
HUNG, SLOW = "hung", "slow"
POLL_SECONDS = 0.02
# Two processes take two to four times as long as one on two cores that others use too; a rank that
# waits for another one never ends.
SLOWER, GRACE_SECONDS = 10.0, 15.0


@dataclass(frozen=True)
class Running:
    """A running trial.

    Attributes:
        trial: The trial.
        ranks: Its processes.
        since: When they were started, in seconds of the monotonic clock.
    """

    trial: Trial
    ranks: list[ForkProcess]
    since: float

    @property
    def is_over(self) -> bool:
        """Whether every rank has ended."""
        return all(rank.exitcode is not None for rank in self.ranks)


class ForkServer:
    """Runs the trials of a plan.

    Args:
        folder: Folder of this run, with the plan; receives the records.
        plan: The trials to run.
        parent: The process that wants the trials; it may die at any time.
    """

    def __init__(self, folder: Path, plan: Plan, parent: int) -> None:
        self._folder = folder
        self._plan = plan
        self._parent = parent
        self._patience = math.inf  # until one process has shown how long a training takes

    def run(self) -> None:
        """Run the stages in turn, until a needed trial fails."""
        for stage in self._plan.stages:
            running = [self._start(trial) for trial in stage]
            while not all(each.is_over for each in running):
                self._check_parent()
                for each in running:
                    self._end_if_late(each)
                time.sleep(POLL_SECONDS)
            for each in running:
                self._note_codes(each)
            self._check_parent()
            if any(self._ends_all(each) for each in running):
                return
            if stage is self._plan.stages[0]:
                alone = time.monotonic() - running[0].since
                self._patience = GRACE_SECONDS + SLOWER * alone

    def _start(self, trial: Trial) -> Running:
        place_of(self._folder, trial).mkdir()
        job_of(self._folder, trial).root.mkdir(exist_ok=True)
        fork = multiprocessing.get_context("fork")
        ranks = [
            fork.Process(target=run_rank, args=(self._folder, self._plan, trial, rank, os.getpid()))
            for rank in range(trial.processes)
        ]
        for rank in ranks:
            rank.start()
        return Running(trial, ranks, time.monotonic())

    def _end_if_late(self, running: Running) -> None:
        """Stop a trial that is over its time; it hangs only if one process was far faster."""
        seconds = time.monotonic() - running.since
        if running.is_over or seconds <= min(self._patience, self._plan.most_seconds):
            return
        for rank in running.ranks:
            rank.kill()
            rank.join()
        mark = HUNG if seconds > self._patience else SLOW
        (place_of(self._folder, running.trial) / mark).touch()

    def _note_codes(self, running: Running) -> None:
        codes = " ".join(str(rank.exitcode) for rank in running.ranks)
        place = place_of(self._folder, running.trial)
        seconds = time.monotonic() - running.since
        write_atomically(place / ENDED, f"{seconds:.3f} {codes}".encode())

    def _ends_all(self, running: Running) -> bool:
        """Whether later trials would only repeat the failure of this one."""
        place, trial = place_of(self._folder, running.trial), running.trial
        if (place / HUNG).exists() or (place / SLOW).exists():
            return True
        right = -signal.SIGKILL if trial.is_killed else 0
        return trial.is_needed and any(rank.exitcode != right for rank in running.ranks)

    def _check_parent(self) -> None:
        """Remove all processes and files when the parent process is gone."""
        if os.getppid() == self._parent:
            return
        for child in multiprocessing.active_children():
            child.kill()
            child.join()
        shutil.rmtree(self._folder, ignore_errors=True)
        os._exit(1)


def main() -> int:
    """Run the trials planned in the folder on the command line."""
    folder, parent = Path(sys.argv[1]), int(sys.argv[2])
    try:
        # Written by the parent process, for this one alone. It imports the task's module.
        plan: Plan = pickle.loads((folder / PLAN).read_bytes())
    except Exception:  # importing user code may raise anything
        last = traceback.format_exc().strip().splitlines()[-1]
        (folder / PROBLEM).write_text(f"the task cannot be created in another process: {last}")
        return 1
    most = max(trial.processes for stage in plan.stages for trial in stage)
    if problem := rendezvous_problem(folder, most):
        (folder / PROBLEM).write_text(f"processes on this machine cannot communicate: {problem}")
        return 1
    ForkServer(folder, plan, parent).run()
    return 0


if __name__ == "__main__":
    os._exit(main())
