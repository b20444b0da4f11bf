"""Supervisor: run the trials in processes of the fork server, stage by stage."""

import math
import os
import pickle
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import numpy as np
from torch.nn.parameter import is_lazy

from perennial.check_skeleton.subject import Subject, once, seeded, select_head
from perennial.check_skeleton.trials.plan import (
    EPOCH_BATCHES,
    PROBLEM,
    PROCESSES,
    ROWS,
    STEPS,
    Plan,
    RandomnessOff,
    RankRecord,
    Trial,
    compute_digest,
    find_record_file,
    make_job,
    plan_stages,
    read_record,
)
from perennial.check_skeleton.trials.rank import (
    RENDEZVOUS_SECONDS,
    find_randomness_switch,
    join_rendezvous,
    run_rank,
)
from perennial.contracts.environment import LEASE, RUN_FOLDER
from perennial.engine.job import RankFailure
from perennial.engine.parallelism.normalization import BATCH_NORMS
from perennial.engine.reproducibility import seeded_model
from perennial.steps.processes import kill_process, running_processes

# Ten processes of a few updates each; a model of this size takes about a second per update.
MOST_PARAMETERS = 30_000_000
# Two processes take two to four times as long as one on two cores that others use too; a rank that
# waits for another one never ends.
SLOWER, GRACE_SECONDS = 10.0, 15.0
# Error messages when memory or disk is full, which is not a fault of the task.
STARVED = r"MemoryError|allocate memory|No space left|quota exceeded|PytorchStreamWriter|Read-only"


@dataclass(frozen=True)
class Outcome:
    """The outcome of one trial."""

    trial: Trial  # the trial
    # Records by rank, where one was written.
    ranks: dict[int, RankRecord] = field(default_factory=dict)
    codes: tuple[int, ...] = ()  # exit codes; empty when the trial did not run
    failure: RankFailure | None = None  # the first exception of a rank
    is_hung: bool = False  # whether it was stopped because it took far longer than one process
    is_slow: bool = False  # whether it was stopped because it took longer than the contract allows
    steps: tuple[int, ...] = ()  # updates that each rank finished
    seconds: float = 0.0  # duration

    @property
    def is_complete(self) -> bool:
        """Whether every rank finished its training."""
        return len(self.ranks) == self.trial.processes

    @property
    def obstacle(self) -> str:
        """Why the machine, and not the task, prevented the trial; empty if it did not."""
        if self.is_slow:
            return (
                f"{STEPS} updates of {self.trial.training.global_batch_size} examples timed out "
                f"after {self.seconds:.0f} s ({self._finished}): raise skeleton.trial_seconds, or "
                "lower skeleton.batch_rows"
            )
        text = f"{self.failure.type}: {self.failure.message}" if self.failure else ""
        # A process that cannot even store its exception exits with 1.
        is_mute = self.failure is None and 1 in self.codes
        is_ended = -signal.SIGKILL in self.codes and not self.is_hung
        if is_mute or is_ended or re.search(STARVED, text):
            return f"the machine ran out of memory or disk ({self.problem})"
        return ""

    @property
    def _finished(self) -> str:
        steps = ", ".join(f"rank {rank}: {step}" for rank, step in enumerate(self.steps))
        return f"updates finished: {steps}"

    @property
    def ends_all(self) -> bool:
        """Whether later trials would only repeat the failure of this one."""
        return self.is_hung or self.is_slow or (self.trial.is_needed and not self.is_complete)

    @property
    def problem(self) -> str:
        """Why the trial is not complete, in one line."""
        if self.is_hung:
            return f"hung for {self.seconds:.0f} s ({self._finished})"
        if self.failure is not None:
            text = " ".join(self.failure.message.split())
            return f"rank {self.failure.rank} raised {self.failure.type}: {text[:200]}"
        if self.codes:
            return f"processes exited with {', '.join(map(str, self.codes))}"
        return "not run, because an earlier trial failed"


@dataclass(frozen=True)
class Trials:
    """The outcomes of all trials."""

    reason: str = ""  # why no trial ran; empty when they ran
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # outcome by the trial's name
    rows: int = 0  # number of training examples
    randomness_off: RandomnessOff = "dropout"  # how randomness was kept out of exact trials
    # Whether batch norm used statistics of all processes in exact trials.
    has_batch_norm: bool = False
    initial: str = ""  # A digest of the weights that this process starts with
    repeat: int = 0  # how often they were run before, from other initial weights

    def __getitem__(self, name: str) -> Outcome:
        return self.outcomes[name]


@once
def make_trials(subject: Subject) -> Trials:
    """Run the trials; all processes and files are removed when this returns or raises."""
    return _run_trials(subject)


def repeat_exact_trials(subject: Subject, repeat: int) -> Trials:
    """Run those without anything random again, from other initial weights and in another order."""
    return _run_trials(subject.reseeded(repeat), repeat)


def run_rounded_trial(subject: Subject, repeat: int) -> Trials:
    """Run the training of one process from weights that differ by about a rounding."""
    return _run_trials(subject.reseeded(repeat), repeat, is_rounded=True)


def _run_trials(subject: Subject, repeat: int = 0, *, is_rounded: bool = False) -> Trials:
    with seeded(subject.seed):
        model = seeded_model(subject.task, subject.seed)
    initial = compute_digest(model.state_dict())
    numbers = sum(each.numel() for each in model.parameters() if not is_lazy(each))
    has_batch_norm = any(isinstance(module, BATCH_NORMS) for module in model.modules())
    del model
    if numbers > MOST_PARAMETERS:
        return Trials(
            f"the model has {numbers / 1e6:,.0f} million parameters; trials in several processes "
            f"on a CPU allow at most {MOST_PARAMETERS / 1e6:.0f} million: shrink it by its options"
        )
    randomness_off = find_randomness_switch(subject)
    # Rows of a global batch, and of the trials' data set.
    most = min(subject.settings.batch_rows, subject.training.global_batch_size)
    size = max(2 * PROCESSES, min(most, int(subject.num_rows() / EPOCH_BATCHES)) // 4 * 4)
    rows = min(subject.num_rows(), int(EPOCH_BATCHES * size))
    stages = plan_stages(subject, size, randomness_off, has_batch_norm=has_batch_norm)
    if repeat:
        stages = tuple(stage for stage in stages if all(trial.is_exact for trial in stage))
    if is_rounded:
        stages = ((replace(stages[0][0], is_rounded=True),),)
    try:
        task = pickle.dumps((subject.make_task, subject.task.state()))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return Trials(f"the task cannot be created in another process: {error}")
    try:
        with tempfile.TemporaryDirectory(prefix="perennial-trials-") as name:
            folder, most_seconds = Path(name), subject.settings.trial_seconds
            plan = Plan(folder, task, randomness_off, most_seconds, make_environment())
            (folder / ROWS).mkdir()
            for tensor_name, tensor in select_head(subject.train, rows).items():
                np.save(folder / ROWS / f"{tensor_name}.npy", tensor.numpy())
            outcomes = _run_stages(plan, stages)
            if not all(each.is_complete for each in outcomes.values() if each.codes):
                _check_rendezvous(plan)  # it may be the machine's fault
            if (folder / PROBLEM).exists():
                return Trials((folder / PROBLEM).read_text())
    except OSError as error:  # no folder, no room in it, no more processes
        return Trials(f"the trials cannot run on this machine: {error}")
    return Trials("", outcomes, rows, randomness_off, has_batch_norm, initial, repeat)


def _check_rendezvous(plan: Plan) -> None:
    """Let processes communicate without any task; why they cannot is stored in the folder."""
    ranks = [(plan, rank, PROCESSES) for rank in range(PROCESSES)]
    with running_processes(join_rendezvous, ranks) as processes:
        for each in processes:
            each.join(2 * RENDEZVOUS_SECONDS)
        codes = [each.exitcode for each in processes]
    if any(codes) and not (plan.folder / PROBLEM).exists():
        reason = f"processes on this machine cannot communicate: exit codes {codes}"
        (plan.folder / PROBLEM).write_text(reason)


def _run_stages(plan: Plan, stages: Sequence[Sequence[Trial]]) -> dict[str, Outcome]:
    """Run the stages in turn, until the failure of a trial would only be repeated."""
    outcomes = {trial.name: Outcome(trial) for stage in stages for trial in stage}
    patience = math.inf  # until one process has shown how long a training takes
    for stage in stages:
        found = _run_stage(plan, stage, patience)
        outcomes |= {each.trial.name: each for each in found}
        if any(each.ends_all for each in found):
            break
        if stage is stages[0]:
            patience = GRACE_SECONDS + SLOWER * found[0].seconds
    return outcomes


def _run_stage(plan: Plan, stage: Sequence[Trial], patience: float) -> list[Outcome]:
    """Run trials side by side; stop those that are over their time."""
    limit = min(patience, plan.most_seconds)
    with ExitStack() as stack:
        running: dict[str, list[ForkServerProcess]] = {}
        for trial in stage:
            find_record_file(plan.folder, trial, 0).parent.mkdir()
            make_job(plan.folder, trial).root.mkdir(exist_ok=True)
            ranks = [(plan, trial, rank) for rank in range(trial.processes)]
            running[trial.name] = stack.enter_context(running_processes(run_rank, ranks))
        start, seconds = time.monotonic(), 0.0
        every = [rank for ranks in running.values() for rank in ranks]
        while (alive := [rank for rank in every if rank.is_alive()]) and seconds < limit:
            connection.wait([rank.sentinel for rank in alive], limit - seconds)
            seconds = time.monotonic() - start
        late = {name for name, ranks in running.items() if any(each in alive for each in ranks)}
        for rank in alive:
            kill_process(rank)
        codes = {name: tuple(r.exitcode or 0 for r in ranks) for name, ranks in running.items()}
    outcomes = []
    for trial in stage:
        files = {r: find_record_file(plan.folder, trial, r) for r in range(trial.processes)}
        steps = [find_record_file(plan.folder, trial, rank, "step") for rank in files]
        outcomes.append(
            Outcome(
                trial,
                ranks={rank: read_record(file) for rank, file in files.items() if file.exists()},
                codes=codes[trial.name],
                failure=RankFailure.first_of(make_job(plan.folder, trial).errors),
                is_hung=trial.name in late and seconds > patience,
                is_slow=trial.name in late and seconds <= patience,
                steps=tuple(int(file.read_text()) if file.exists() else 0 for file in steps),
                seconds=seconds,
            )
        )
    return outcomes


def make_environment() -> dict[str, str]:
    """Return this process's environment without variables that are for it alone."""
    own = (LEASE, RUN_FOLDER, "_KFP_RUNTIME")
    return {
        **{name: value for name, value in os.environ.items() if name not in own},
        # The task may lie beside the contract.
        "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "POLARS_MAX_THREADS": "1",
        # All traffic stays on this machine, whose name need not resolve.
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
    }
