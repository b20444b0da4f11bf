"""Scoring worker: one process that scores, on the step's machine or as a rank of a job.

    python -m perennial.engine.scoring_worker s3://bucket/…/job.json   # by torchrun: PET_ variables

On the step's machine, `perennial.engine.evaluation.processes` starts the module that scores.
"""

import ctypes
import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import torch

from perennial.clients.outages import waiting_out_outages
from perennial.contracts.artifact import write_atomically
from perennial.contracts.section import Section
from perennial.contracts.user_code import no_silent_exit, user_code
from perennial.engine.evaluation.job_files import (
    INPUTS,
    RESULTS,
    TARGET,
    fetch_inputs,
    upload_results,
)
from perennial.engine.evaluation.processes import (
    Failure,
    ScoringRequest,
    blaming_the_machine,
    failure_file,
    found_file,
)
from perennial.engine.evaluation.scoring import Share
from perennial.engine.handover import announce_end, announce_rendezvous, fetch_job
from perennial.engine.job import ScoringJob
from perennial.engine.resilience.rank_output import record_failure, start_logging
from perennial.engine.resilience.unattended import ending_unattended
from perennial.engine.world.distributed import World, rank_of_this_process
from perennial.steps.lease import follow_lease
from perennial.steps.processes import name_process

M_MMAP_THRESHOLD, LARGE_BYTES = -3, 2**20  # the first is glibc's, of malloc.h
logger = logging.getLogger(__name__)
Request = TypeVar("Request", bound=ScoringRequest)


def main() -> int:
    """Run the scoring module of the job named on the command line; returns the exit code."""
    with waiting_out_outages():
        job = fetch_job(sys.argv[1], ScoringJob)
        code: int = importlib.import_module(job.module).main()
    return code


def score_share(
    request_type: type[Request], scores: Callable[[Request, Share, Path], Iterable[Section]]
) -> int:
    """Score this process's rows; returns the exit code.

    Args:
        request_type: What this process reads.
        scores: Request, share, folder for files → what is found, in order.
    """
    address, *rank = sys.argv[1:]
    with waiting_out_outages():
        if rank:
            return _score_here(Path(address), int(rank[0]), request_type, scores)
        return _score_as_rank(fetch_job(address, ScoringJob), request_type, scores)


def _score_here(
    path: Path,
    rank: int,
    request_type: type[Request],
    scores: Callable[[Request, Share, Path], Iterable[Section]],
) -> int:
    try:
        with no_silent_exit(), user_code("the scoring of rows"):
            follow_lease()
            torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
            request = request_type.from_json(path.read_text())
            share = Share(rank, request.processes)
            if request.sharded:
                return_freed_memory()
                share = Share(0, 1, World.join())
            for number, each in enumerate(scores(request, share, path.parent / f"{rank}")):
                if share.world is None or share.world.is_first:
                    file = found_file(path.parent, rank, number)
                    write_atomically(file, each.to_json().encode())
            if share.world is not None:
                share.world.barrier()
    except Exception as error:
        write_atomically(failure_file(path.parent, rank), Failure.of(error).to_json().encode())
        raise
    return 0


def _score_as_rank(
    job: ScoringJob,
    request_type: type[Request],
    scores: Callable[[Request, Share, Path], Iterable[Section]],
) -> int:
    rank = rank_of_this_process()
    name_process(f"rank-{rank}")
    start_logging(job, rank)
    try:
        with no_silent_exit(), user_code(f"rank {rank}"):
            with blaming_the_machine():
                world = World.join()
                if world.is_first:
                    announce_rendezvous(job)
            with ending_unattended(job, rank):
                _score(job, world, request_type, scores)
    except BaseException as error:  # any exception must be reported
        logger.exception("rank=%d failed", rank)
        if isinstance(error, Exception):
            write_atomically(failure_file(job.errors, rank), Failure.of(error).to_json().encode())
        record_failure(job, rank, 0, error)
        return 1
    return 0


def _score(
    job: ScoringJob,
    world: World,
    request_type: type[Request],
    scores: Callable[[Request, Share, Path], Iterable[Section]],
) -> None:
    with blaming_the_machine():
        if world.local_rank == 0:
            fetch_inputs(job)
    world.barrier()
    place = job.root / RESULTS
    request = request_type.from_json(job.request)
    here = {name: str(job.root / INPUTS / name) for name in job.inputs}
    if request.target:
        here["target"] = str(place / TARGET)
    return_freed_memory()
    request, share = request.model_copy(update=here), Share(0, 1, world)
    found = [each.to_json() for each in scores(request, share, place / f"{world.rank}")]
    with blaming_the_machine():
        if world.is_first:
            upload_results(job, place, found)
        # Gathered, so that nothing is announced before every rank has come this far.
        ranks = world.to_first(world.rank)
        if ranks is not None:
            announce_end(job, ranks, is_finished=True)
    world.barrier()


def return_freed_memory() -> None:
    """Let glibc return what a gathered block leaves; it would keep several times the shards."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


if __name__ == "__main__":
    exit_code = main()
    # As the training worker ends: all that matters is in the store.
    logging.shutdown()
    os._exit(exit_code)
