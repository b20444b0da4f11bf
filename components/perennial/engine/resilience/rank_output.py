"""Rank output: the log of one rank of a job, and the exception that ended it."""

import logging
import time

import torch.distributed as dist

from perennial.clients.outages import is_outage
from perennial.contracts.artifact import write_atomically
from perennial.contracts.errors import PerennialError
from perennial.contracts.user_code import LogFormatter, format_traceback
from perennial.engine.handover import deliver
from perennial.engine.job import Job, RankFailure
from perennial.engine.resilience.out_of_memory import PassOutOfMemoryError


def record_failure(job: Job, rank: int, step: int, error: BaseException) -> None:
    """Write the exception for the launcher."""
    text = str(error)
    failure = RankFailure(
        rank=rank,
        step=step,
        type=type(error).__name__,
        message=text,
        traceback=format_traceback(error),
        time=time.time(),
        # gloo raises a plain RuntimeError, whose text has the path of gloo's source file.
        is_consequence=isinstance(error, dist.DistError) or "/gloo/" in text or "NCCL" in text,
        is_outage=isinstance(error, PerennialError) and is_outage(error),
        halving=error.halving(step, rank) if isinstance(error, PassOutOfMemoryError) else None,
    )
    write_atomically(job.errors / f"rank-{rank}.json", failure.to_json().encode())
    deliver(job, *job.errors.glob(f"*rank-{rank}.*"))


def start_logging(job: Job, rank: int) -> None:
    """Log to one file per rank, which every attempt appends to; in a pod, to its log."""
    job.logs.mkdir(parents=True, exist_ok=True)
    place: logging.Handler = (
        logging.StreamHandler()
        if job.attempt
        else logging.FileHandler(job.logs / f"rank-{rank}.log")
    )
    line = f"%(asctime)s %(levelname)s rank={rank} %(name)s %(message)s"
    place.setFormatter(LogFormatter(line))
    logging.basicConfig(handlers=[place], level=logging.INFO)
    logging.captureWarnings(True)
