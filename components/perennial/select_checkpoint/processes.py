"""Processes: is scoring worth several of them, and what do they find together?

    python -m perennial.select_checkpoint.share_of_rows REQUEST.json RANK

Each scores its own rows under all weights that are asked for. Nothing is exchanged but files, and
what they find is what one process would, bit for bit; so the number may depend on the clock.
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
# Until a process has imported PyTorch and read the snapshot: 4 s measured on two busy cores.
STARTING_SECONDS = 4.0
# It must win clearly: what is left is guessed from what went before.
WORTH = 2.0
LAST_LINES = 3
Steps = tuple[int, ...]
"""Of one checkpoint, or of those whose mean is asked for."""


class Request(Section):
    """What every process is told."""

    training: str
    """Folder of the `TrainingResult`."""
    snapshot: str
    """Folder of the `Snapshot`."""
    work: tuple[Steps, ...]
    """Which weights."""
    processes: int
    """How many share the rows."""


@dataclass(frozen=True)
class Machine:
    """What there is to score on.

    Attributes:
        gpus: That this process sees.
        cores: That it may use.
        threads: That PyTorch computes with, in each process.
    """

    gpus: int
    cores: int
    threads: int

    @classmethod
    def here(cls) -> "Machine":
        """This one."""
        return cls(torch.cuda.device_count(), len(os.sched_getaffinity(0)), torch.get_num_threads())


def worthwhile(machine: Machine, trained_on: int, seconds: float) -> int:
    """How many processes to score with: one per GPU, or per free core as far as training had them.

    Args:
        machine: What there is.
        trained_on: Processes of the training: a container often sees more cores than it may use.
        seconds: What one process would take for the rest.
    """
    on_cpu = 1 if machine.gpus else min(trained_on, machine.cores // machine.threads)
    available = max(machine.gpus, on_cpu, 1)
    saved = seconds * (1 - 1 / available)
    return available if saved > WORTH * STARTING_SECONDS else 1


def score_in_processes(request: Request, scratch: Path) -> Iterator[list[Found]]:
    """For each of the weights asked for, what every process found, in the order of the rows.

    Raises:
        PerennialError: a process failed.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    write_atomically(scratch / REQUEST_FILE, request.to_json().encode())
    # Without the lease the processes end by themselves, whatever became of this one.
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
    """Where a process says what it found for one of the weights; the figures lie beside it."""
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
        # The lease ends those that are still at work when one has failed, or this process is told
        # to stop; leaving the block waits for them.
        stack.callback(lease.release)
        for rank, process in enumerate(running):
            left = found_file(scratch, rank, len(request.work) - 1)
            if process.wait() != 0 or not left.exists():
                raise PerennialError(
                    f"process {rank} of {request.processes} failed while it scored checkpoints",
                    evidence=_last_lines(scratch / f"log-{rank}"),
                    action="set selection.processes = 1 to see it in this process; with too "
                    "little memory for several models, leave it there",
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
    return " / ".join(lines[-LAST_LINES:]) or "it said nothing"
