"""Processes: score checkpoints in several processes if that saves time.

    python -m perennial.select_checkpoint.share_of_rows REQUEST.json RANK

Each scores its own rows with all requested weights. They exchange only files, and their results
equal those of one process bit for bit; so their number may depend on the clock.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch

from perennial.contracts.artifact import write_atomically
from perennial.contracts.environment import LEASE
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import Section
from perennial.select_checkpoint.figures_on_disk import Found
from perennial.steps.lease import RunLease

REQUEST_FILE = "request.json"
# Time to import PyTorch and read the snapshot: 4 s measured on two busy cores.
STARTING_SECONDS = 4.0
# The saving must be clear, because the remaining time is an extrapolation.
WORTH = 2.0
LAST_LINES = 3
Steps = tuple[int, ...]
"""Steps of one checkpoint, or of those whose mean is requested."""


class Request(Section):
    """The request to every process."""

    training: str
    """Folder of the `TrainingResult`."""
    snapshot: str
    """Folder of the `Snapshot`."""
    work: tuple[Steps, ...]
    """Weights to score."""
    processes: int
    """Number of processes that share the rows."""


@dataclass(frozen=True)
class Machine:
    """The machine's resources for scoring.

    Attributes:
        gpus: GPUs visible to this process.
        cores: Cores that it may use.
        threads: PyTorch's threads in each process.
    """

    gpus: int
    cores: int
    threads: int

    @classmethod
    def here(cls) -> "Machine":
        """Return this machine's resources."""
        return cls(torch.cuda.device_count(), len(os.sched_getaffinity(0)), torch.get_num_threads())


def worthwhile(machine: Machine, trained_on: int, seconds: float) -> int:
    """Return the number of processes: one per GPU, or per free core up to the training's number.

    Args:
        machine: The machine's resources.
        trained_on: Processes of the training: a container often sees more cores than it may use.
        seconds: Time that one process would need for the rest.
    """
    on_cpu = 1 if machine.gpus else min(trained_on, machine.cores // machine.threads)
    available = max(machine.gpus, on_cpu, 1)
    saved = seconds * (1 - 1 / available)
    return available if saved > WORTH * STARTING_SECONDS else 1


def score_in_processes(request: Request, scratch: Path) -> Iterator[list[Found]]:
    """Yield, for each of the requested weights, every process's scores in the order of the rows.

    Raises:
        PerennialError: a process failed.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    write_atomically(scratch / REQUEST_FILE, request.to_json().encode())
    # Without the lease the processes end by themselves, even if this one was killed.
    lease = RunLease(scratch)
    lease.acquire()
    try:
        _run(request, scratch, lease)
        for number in range(len(request.work)):
            files = (found_file(scratch, rank, number) for rank in range(request.processes))
            yield [Found.from_json(file.read_text()) for file in files]
    finally:
        lease.release()


def found_file(scratch: Path, rank: int, number: int) -> Path:
    """Return the file of a process's results for one of the weights; its scores are beside it."""
    return scratch / f"found-{rank}-{number}.json"


def _run(request: Request, scratch: Path, lease: RunLease) -> None:
    with ExitStack() as stack:
        running = []
        for rank in range(request.processes):
            log = stack.enter_context((scratch / f"log-{rank}").open("wb"))
            module = "perennial.select_checkpoint.share_of_rows"
            process = subprocess.Popen(
                [sys.executable, "-m", module, str(scratch / REQUEST_FILE), str(rank)],
                env=_environment(os.environ, rank, lease),
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
            running.append(stack.enter_context(process))
        # The lease ends those that still run when one has failed or this process is stopped;
        # leaving the block waits for them.
        stack.callback(lease.release)
        for rank, process in enumerate(running):
            left = found_file(scratch, rank, len(request.work) - 1)
            if process.wait() != 0 or not left.exists():
                raise PerennialError(
                    f"process {rank} of {request.processes} failed while it scored checkpoints",
                    evidence=_last_lines(scratch / f"log-{rank}"),
                    action="set selection.processes = 1 to reproduce it in this process; keep it "
                    "if there is too little memory for several models",
                )


def _environment(environment: Mapping[str, str], rank: int, lease: RunLease) -> dict[str, str]:
    # Set by KFP's executor; with it, importing kfp fails in child processes.
    kept = {name: value for name, value in environment.items() if name != "_KFP_RUNTIME"}
    visible = kept.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(n) for n in range(torch.cuda.device_count())]
    if devices and torch.cuda.is_available():
        kept["CUDA_VISIBLE_DEVICES"] = devices[rank % len(devices)]
    return {
        **kept,
        # The user's task is imported from wherever this process finds it.
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        LEASE: lease.address,
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
        "POLARS_MAX_THREADS": str(torch.get_num_threads()),
    }


def _last_lines(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-LAST_LINES:]) or "no output"
