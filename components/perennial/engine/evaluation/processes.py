"""Scoring in processes: several processes of one machine share the rows of a split.

They exchange only files, and their results equal those of one process bit for bit; so their number
may depend on the clock. A module that scores in processes runs as

    python -m MODULE REQUEST.json RANK

and scores that share of the rows, on a GPU of its own where there are several
(`perennial.engine.scoring_worker`).

With `sharded`, they divide the weights in place of the rows: all of them take part in each forward
pass, and the first returns what is found. If one of them ends, the others are ended at once.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from perennial.contracts import errors
from perennial.contracts.artifact import write_atomically
from perennial.contracts.environment import RENDEZVOUS
from perennial.contracts.errors import PerennialError, ShardingError
from perennial.contracts.section import Section
from perennial.engine.evaluation.scoring import Share, blames_machine, scoring_device
from perennial.engine.export import load_model
from perennial.engine.parallelism.sharded_loading import load_sharded_model
from perennial.engine.task import Task
from perennial.steps.lease import RunLease
from perennial.steps.processes import run_module, running_processes, wait_for_processes

REQUEST_FILE = "request.json"
LAST_LINES = 3
MORE_MEMORY = "give the step more memory, or raise scoring.shards, so that each holds less"
# All traffic stays on this machine, whose name need not resolve.
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


class ScoringRequest(Section):
    """What every process reads."""

    processes: int
    """Number of processes that share the rows, or the weights."""
    sharded: bool = False
    """Whether the processes divide the weights."""
    target: str = ""
    """Folder for files that the first process writes beside its results; empty for none."""
    inputs: ClassVar[tuple[str, ...]] = ("model", "snapshot")
    """Options that name a folder or file that every process reads."""


@dataclass(frozen=True)
class Machine:
    """The machine's resources for scoring."""

    gpus: int
    cores: int
    threads: int

    @classmethod
    def here(cls) -> "Machine":
        """Return this machine's resources."""
        return cls(torch.cuda.device_count(), len(os.sched_getaffinity(0)), torch.get_num_threads())


class Failure(Section):
    """The error that a process ended with."""

    kind: str
    problem: str
    evidence: str = ""
    action: str = ""
    blames_machine: bool

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """Return what a process leaves of its error."""
        kind, blame = type(error).__name__, blames_machine(error)
        if not isinstance(error, PerennialError):
            return cls(kind=kind, problem=str(error), blames_machine=blame)
        parts = {"evidence": error.evidence, "action": error.action}
        return cls(kind=kind, problem=error.problem, blames_machine=blame, **parts)

    def as_error(self, place: str = "") -> Exception:
        """Return the error as this process would have raised it; errors of libraries by name.

        `place` names the process that it ended.
        """
        if self.action:
            kind = getattr(errors, self.kind, PerennialError)
            evidence = "; ".join(filter(None, (place, self.evidence)))
            found: Exception = kind(self.problem, evidence=evidence, action=self.action)
            return found
        text = ": ".join(filter(None, (place, self.kind, self.problem)))
        return machine_failed(text) if self.blames_machine else RuntimeError(text)


def require_shards(shards: int) -> None:
    """Check that there is a GPU, or without any a core, for each shard.

    Raises:
        ShardingError: the machine has fewer.
    """
    machine = Machine.here()
    available = machine.gpus or machine.cores
    if shards > available:
        raise ShardingError(
            f"scoring.shards = {shards}, but this machine has {available} "
            f"{'GPU' if machine.gpus else 'core'}{'s' * (available > 1)}",
            action=f"set scoring.shards = {available}, or give the step's pod more: `cpu` or "
            "`accelerators` under [pods.steps] of the profile",
        )


@dataclass(frozen=True)
class Shards:
    """The processes of this machine that divide the weights of a model; 1 holds it whole."""

    number: int = 1

    def require(self) -> None:
        """Check that the model can be divided so often.

        Raises:
            ShardingError: there are too few GPUs or cores.
        """
        require_shards(self.number)

    def score(
        self, module: str, request: ScoringRequest, results: int, scratch: Path
    ) -> Iterator[list[str]]:
        """Yield, one by one, what the first process found; see `score_in_processes`."""
        return score_in_processes(module, request, results, scratch)


WHOLE = Shards()


def load_shared(folder: Path, share: Share) -> tuple[Task, nn.Module]:
    """Load an exported model for a share: whole, or this process's shards of verified weights."""
    if share.world is None:
        return load_model(folder, scoring_device())
    return load_sharded_model(folder, share.world)


def score_in_processes(
    module: str, request: ScoringRequest, results: int, scratch: Path
) -> Iterator[list[str]]:
    """Yield, one by one, what every process found, in the order of the rows; sharded, the first.

    Raises:
        PerennialError: a process failed. Sharded, the error that ended the first of them.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    write_atomically(scratch / REQUEST_FILE, request.to_json().encode())
    # Without the lease the processes end by themselves, even if this one was killed.
    lease = RunLease(scratch)
    lease.acquire()
    try:
        _run(module, request, results, scratch, lease)
        for number in range(results):
            ranks = range(1 if request.sharded else request.processes)
            files = (found_file(scratch, rank, number) for rank in ranks)
            yield [file.read_text() for file in files]
    finally:
        lease.release()


def found_file(scratch: Path, rank: int, number: int) -> Path:
    """Return the file of one of a process's results."""
    return scratch / f"found-{rank}-{number}.json"


def failure_file(folder: Path, rank: int) -> Path:
    """Return the file of the error that ended a process."""
    return folder / f"failure-rank-{rank}.json"


def _run(
    module: str, request: ScoringRequest, results: int, scratch: Path, lease: RunLease
) -> None:
    processes = request.processes
    arguments = [
        (
            module,
            [str(scratch / REQUEST_FILE), str(rank)],
            _environment(os.environ, rank, lease, processes if request.sharded else 1),
            scratch / f"log-{rank}",
        )
        for rank in range(processes)
    ]
    with running_processes(run_module, arguments) as running:
        # No process has anything to save: when one fails, the others are killed at once.
        codes = wait_for_processes(running, grace_seconds=0.0)
    if request.sharded:
        _raise_first(codes, scratch)
        return
    for rank, code in codes.items():
        if code != 0 or not found_file(scratch, rank, results - 1).exists():
            raise PerennialError(
                f"process {rank} of {processes} failed while it scored rows",
                evidence=_last_lines(scratch / f"log-{rank}"),
                action="set selection.processes and gate.processes to 1 to reproduce it in this "
                "process; keep that if there is too little memory for several models",
            )


def _raise_first(codes: Mapping[int, int], scratch: Path) -> None:
    """Raise the error that ended the first failed process; the others failed for lack of it."""
    rank = next((rank for rank, code in codes.items() if code != 0), None)
    if rank is None:
        return
    file = failure_file(scratch, rank)
    if file.exists():
        raise Failure.from_json(file.read_text()).as_error()
    text = f"process {rank} of {len(codes)} ended with exit code {codes[rank]}"
    raise machine_failed(text, _last_lines(scratch / f"log-{rank}"))


def machine_failed(text: str, evidence: str = "", action: str = MORE_MEMORY) -> ShardingError:
    """Return the error for a scoring that failed for a reason unrelated to the model."""
    problem = f"scoring in shards was stopped: {text}"
    return ShardingError(problem, evidence=evidence, action=action)


@contextmanager
def blaming_the_machine() -> Iterator[None]:
    """Turn errors of the surroundings, such as the store, into ones that blame no model."""
    try:
        yield
    except ShardingError:
        raise
    except PerennialError as error:
        raise machine_failed(error.problem, error.evidence, error.action) from error


def _environment(
    environment: Mapping[str, str], rank: int, lease: RunLease, shards: int
) -> dict[str, str]:
    kept = lease.variables(environment)
    visible = kept.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(n) for n in range(torch.cuda.device_count())]
    threads = torch.get_num_threads()
    if shards > 1:
        # More threads than cores make every operation many times slower.
        threads = max(1, min(threads, Machine.here().cores // shards))
        kept |= {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}", "GLOO_SOCKET_IFNAME": LOOPBACK}
        kept |= {"WORLD_SIZE": f"{shards}", "LOCAL_WORLD_SIZE": f"{shards}"}
        kept[RENDEZVOUS] = str(lease.path.with_name("rendezvous"))
    elif devices and torch.cuda.is_available():
        kept["CUDA_VISIBLE_DEVICES"] = devices[rank % len(devices)]
    return {
        **kept,
        "OMP_NUM_THREADS": str(threads),
        "POLARS_MAX_THREADS": str(threads),
    }


def _last_lines(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-LAST_LINES:]) or "no output"
