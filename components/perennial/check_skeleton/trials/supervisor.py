"""Supervisor: run the engine's short trainings, in every setup that must give equal results."""

import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from torch.nn.parameter import is_lazy

from perennial.check_skeleton.subject import Subject, head_of, seeded
from perennial.check_skeleton.trials.digests import digest_of
from perennial.check_skeleton.trials.fork_server import ENDED, HUNG, PROBLEM, SLOW
from perennial.check_skeleton.trials.plan import (
    PLAN,
    STEPS,
    Plan,
    RandomnessOff,
    RankRecord,
    Trial,
    job_of,
    place_of,
    read_record,
    record_of,
    step_file_of,
    write_rows,
)
from perennial.check_skeleton.trials.randomness_off import find_randomness_switch
from perennial.contracts.environment import LEASE, RUN_FOLDER
from perennial.engine.config.optimization import Constant, NormClipping, Sgd
from perennial.engine.config.parallelism import Memory, Parallelism, Strategy
from perennial.engine.config.training import (
    Checkpoints,
    Loading,
    Normalization,
    Stragglers,
    TrainingSection,
    Watchdog,
)
from perennial.engine.job import RankFailure
from perennial.engine.parallelism.normalization import BATCH_NORMS
from perennial.engine.reproducibility import seeded_model

# Twelve processes of a few updates each; a model of this size takes about a second per update.
MOST_PARAMETERS = 30_000_000
IMPORT_SECONDS = 120.0
FORK_SERVER = "perennial.check_skeleton.trials.fork_server"
PROCESSES = 2
# An epoch ends within a global batch, and two and more of them pass.
EPOCH_BATCHES = 2.5
# Error messages when memory or disk is full, which is not a fault of the task.
STARVED = r"MemoryError|allocate memory|No space left|quota exceeded|PytorchStreamWriter|Read-only"


@dataclass(frozen=True)
class Outcome:
    """The outcome of one trial.

    Attributes:
        trial: The trial.
        ranks: Records by rank, where one was written.
        codes: Exit codes; empty when the trial did not run.
        failure: The first exception of a rank.
        is_hung: Whether it was stopped because it took far longer than one process.
        is_slow: Whether it was stopped because it took longer than the contract allows.
        steps: Updates that each rank finished.
        seconds: Duration.
    """

    trial: Trial
    ranks: dict[int, RankRecord] = field(default_factory=dict)
    codes: tuple[int, ...] = ()
    failure: RankFailure | None = None
    is_hung: bool = False
    is_slow: bool = False
    steps: tuple[int, ...] = ()
    seconds: float = 0.0

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
        is_ended = -signal.SIGKILL in self.codes and not (self.is_hung or self.trial.is_killed)
        if is_mute or is_ended or re.search(STARVED, text):
            return f"the machine ran out of memory or disk ({self.problem})"
        return ""

    @property
    def _finished(self) -> str:
        steps = ", ".join(f"rank {rank}: {step}" for rank, step in enumerate(self.steps))
        return f"updates finished: {steps}"

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
    """The outcomes of all trials.

    Attributes:
        reason: Why no trial ran; empty when they ran.
        outcomes: Outcome by the trial's name.
        rows: Number of training examples.
        randomness_off: How randomness was kept out of exact trials.
        has_batch_norm: Whether batch norm used statistics of all processes in exact trials.
        initial: A digest of the weights that this process starts with.
    """

    reason: str = ""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    rows: int = 0
    randomness_off: RandomnessOff = "dropout"
    has_batch_norm: bool = False
    initial: str = ""

    def __getitem__(self, name: str) -> Outcome:
        return self.outcomes[name]


def make_trials(subject: Subject) -> Trials:
    """Run the trials; all processes and files are removed when this returns or raises."""
    with seeded(subject.seed):
        model = seeded_model(subject.task, subject.seed)
    initial = digest_of(model.state_dict())
    size = sum(each.numel() for each in model.parameters() if not is_lazy(each))
    has_batch_norm = any(isinstance(module, BATCH_NORMS) for module in model.modules())
    del model
    if size > MOST_PARAMETERS:
        return Trials(
            f"the model has {size / 1e6:,.0f} million parameters; trials in several processes on "
            f"a CPU allow at most {MOST_PARAMETERS / 1e6:.0f} million: shrink it by its options"
        )
    randomness_off = find_randomness_switch(subject)
    sizes = batch_sizes(subject)
    stages = stages_of(subject, sizes[0], randomness_off, has_batch_norm=has_batch_norm)
    plan = Plan(
        subject.make_task,
        subject.task.state(),
        randomness_off,
        stages,
        subject.settings.trial_seconds,
    )
    try:
        pickled = pickle.dumps(plan)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return Trials(f"the task cannot be created in another process: {error}")
    try:
        with tempfile.TemporaryDirectory(prefix="perennial-trials-") as name:
            folder = Path(name)
            (folder / PLAN).write_bytes(pickled)
            write_rows(folder, head_of(subject.train, sizes[1]))
            problem = _run_fork_server(folder, plan)
            if problem:
                return Trials(problem)
            outcomes = {each.name: outcome_of(folder, each) for stage in stages for each in stage}
    except OSError as error:  # no folder, no room in it, no more processes
        return Trials(f"the trials cannot run on this machine: {error}")
    return Trials("", outcomes, sizes[1], randomness_off, has_batch_norm, initial)


def batch_sizes(subject: Subject) -> tuple[int, int]:
    """Return the rows of a global batch, and the rows of the trials' data set."""
    most = min(subject.settings.batch_rows, subject.training.global_batch_size)
    rows = subject.num_rows()
    size = max(2 * PROCESSES, min(most, int(rows / EPOCH_BATCHES)) // 4 * 4)
    return size, min(rows, int(EPOCH_BATCHES * size))


def stages_of(
    subject: Subject, size: int, randomness_off: RandomnessOff, *, has_batch_norm: bool
) -> tuple[tuple[Trial, ...], ...]:
    """Return the trials in stages, in order."""
    exact = exact_training(subject.training, size, has_batch_norm=has_batch_norm)
    half = exact.model_copy(update={"micro_batch_size": size // PROCESSES})

    def exactly(name: str, strategy: Strategy, training: TrainingSection, processes: int) -> Trial:
        section = training.model_copy(update={"strategy": strategy})
        return Trial(name, section, processes, name, is_exact=True, is_needed=name == "alone")

    alone = exactly("alone", "single", exact, 1)
    stages: list[tuple[Trial, ...]] = []
    if subject.training.strategy == "single" or randomness_off == "noise":
        stages = [(alone,)]
    else:
        passes = exactly("passes", "single", half, 1)
        is_divisible = not subject.task.needs_whole_batch
        stages = [(alone, passes) if is_divisible else (alone,)]
        stages += [(exactly(name, name, half, PROCESSES),) for name in ("ddp", "fsdp")]
    section = contracted_training(subject.training, size)
    processes = 1 if section.strategy == "single" else PROCESSES
    straight = Trial("straight", section, processes, "straight", is_needed=True)
    killed = Trial("killed", section, processes, "resumed", is_killed=True, is_needed=True)
    resumed = Trial("resumed", section, processes, "resumed")
    return (*stages, (straight,), (killed,), (resumed,))


def exact_training(
    training: TrainingSection, size: int, *, has_batch_norm: bool
) -> TrainingSection:
    """Return a training with plain gradient descent, which does not amplify rounding errors.

    Adaptive optimizers turn them into whole steps where a gradient is zero in theory, as before a
    normalisation.
    """
    return TrainingSection(
        seed=training.seed, steps=STEPS, global_batch_size=size, micro_batch_size=size,
        optimizer=Sgd(name="sgd", learning_rate=0.1, momentum=0.0, nesterov=False),
        schedule=Constant(shape="constant", warmup_fraction=0.0),
        clipping=NormClipping(max_norm=1.0), evaluate_every_steps=STEPS, log_every_steps=1,
        normalization=Normalization(batch_norm="sync" if has_batch_norm else "local"),
        watchdog=Watchdog(hang_factor=None), stragglers=Stragglers(every_steps=None),
        checkpoints=Checkpoints(asynchronous=False),
    )  # fmt: skip


def contracted_training(training: TrainingSection, size: int) -> TrainingSection:
    """Return the contract's training (optimizer, schedule, clipping) for two CPU processes."""
    strategy = training.strategy if training.strategy in ("single", "ddp") else "fsdp"
    processes = 1 if strategy == "single" else PROCESSES
    return training.model_copy(
        update={
            "global_batch_size": size, "micro_batch_size": size // processes,
            "strategy": strategy, "parallelism": Parallelism(), "memory": Memory(),
            "precision": "fp32" if training.precision == "fp16" else training.precision,
            "allow_tf32": False, "compile": False, "loading": Loading(), "profile": None,
            "log_every_steps": 1, "watchdog": Watchdog(hang_factor=None),
            "stragglers": Stragglers(every_steps=None),
            "checkpoints": Checkpoints(asynchronous=False),
        }
    )  # fmt: skip


def outcome_of(folder: Path, trial: Trial) -> Outcome:
    """Read the outcome of a trial."""
    place = place_of(folder, trial)
    if not (place / ENDED).exists():
        return Outcome(trial)
    seconds, *codes = (place / ENDED).read_text().split()
    files = {rank: record_of(folder, trial, rank) for rank in range(trial.processes)}
    steps = [step_file_of(folder, trial, rank) for rank in files]
    return Outcome(
        trial,
        {rank: read_record(file) for rank, file in files.items() if file.exists()},
        tuple(map(int, codes)),
        RankFailure.first_of(job_of(folder, trial).errors),
        (place / HUNG).exists(),
        (place / SLOW).exists(),
        tuple(int(file.read_text()) if file.exists() else 0 for file in steps),
        float(seconds),
    )


def _run_fork_server(folder: Path, plan: Plan) -> str:
    """Run the fork server; return why it failed, empty if it did not."""
    stages = len(plan.stages)
    with (folder / "fork_server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", FORK_SERVER, str(folder), str(os.getpid())],
            env=fork_server_environment(), stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(IMPORT_SECONDS + stages * plan.most_seconds)
        except subprocess.TimeoutExpired:
            return "the trials timed out: importing the task's module may hang"
        finally:
            # The fork server leads its own session, which contains all ranks.
            _end_session(process)
    if (folder / PROBLEM).exists():
        return (folder / PROBLEM).read_text()
    if code:
        lines = (folder / "fork_server.log").read_text(errors="replace").strip().splitlines()
        return f"the process of the trials exited with {code}: {''.join(lines[-1:])}"
    return ""


def _end_session(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):  # all have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def fork_server_environment() -> dict[str, str]:
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
