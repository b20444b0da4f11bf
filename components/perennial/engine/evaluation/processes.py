"""Scoring in processes: several processes of one machine share the rows of a split.

They exchange only files, and their results equal those of one process bit for bit; so their number
may depend on the clock. A module that scores in processes runs as

    python -m MODULE REQUEST.json RANK

and scores that share of the rows, on a GPU of its own where there are several.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from perennial.clients.outages import waiting_out_outages
from perennial.contracts.artifact import write_atomically
from perennial.contracts.environment import LEASE
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import Section
from perennial.contracts.user_code import no_silent_exit, user_code
from perennial.engine.evaluation.scoring import Share
from perennial.steps.lease import RunLease, follow_lease
from perennial.steps.processes import run_module, running_processes, wait_for_processes

REQUEST_FILE = "request.json"
LAST_LINES = 3


class ScoringRequest(Section):
    """What every process reads."""

    processes: int
    """Number of processes that share the rows."""


Request = TypeVar("Request", bound=ScoringRequest)


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


def score_in_processes(
    module: str, request: ScoringRequest, results: int, scratch: Path
) -> Iterator[list[str]]:
    """Yield, one by one, what every process found, in the order of the rows.

    Raises:
        PerennialError: a process failed.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    write_atomically(scratch / REQUEST_FILE, request.to_json().encode())
    # Without the lease the processes end by themselves, even if this one was killed.
    lease = RunLease(scratch)
    lease.acquire()
    try:
        _run(module, request.processes, results, scratch, lease)
        for number in range(results):
            files = (_found_file(scratch, rank, number) for rank in range(request.processes))
            yield [file.read_text() for file in files]
    finally:
        lease.release()


def score_share(
    request_type: type[Request], scores: Callable[[Request, Share, Path], Iterable[Section]]
) -> int:
    """Score this process's rows; returns the exit code.

    Args:
        request_type: What this process reads.
        scores: Request, share, folder for files → what is found, in order.
    """
    with waiting_out_outages(), no_silent_exit(), user_code("the scoring of rows"):
        follow_lease()
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        path, rank = Path(sys.argv[1]), int(sys.argv[2])
        request = request_type.from_json(path.read_text())
        folder = path.parent / f"{rank}"
        found = scores(request, Share(rank, request.processes), folder)
        for number, each in enumerate(found):
            write_atomically(_found_file(path.parent, rank, number), each.to_json().encode())
    return 0


def _found_file(scratch: Path, rank: int, number: int) -> Path:
    return scratch / f"found-{rank}-{number}.json"


def _run(module: str, processes: int, results: int, scratch: Path, lease: RunLease) -> None:
    arguments = [
        (
            module,
            [str(scratch / REQUEST_FILE), str(rank)],
            _environment(os.environ, rank, lease),
            scratch / f"log-{rank}",
        )
        for rank in range(processes)
    ]
    with running_processes(run_module, arguments) as running:
        codes = wait_for_processes(running, grace_seconds=0.0)
    for rank, code in codes.items():
        if code != 0 or not _found_file(scratch, rank, results - 1).exists():
            raise PerennialError(
                f"process {rank} of {processes} failed while it scored rows",
                evidence=_last_lines(scratch / f"log-{rank}"),
                action="set selection.processes and gate.processes to 1 to reproduce it in this "
                "process; keep that if there is too little memory for several models",
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
