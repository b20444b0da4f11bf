"""Rendezvous check: whether processes on this machine can communicate, without any task."""

import multiprocessing
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

MOST_SECONDS = 20.0


def rendezvous_problem(folder: Path, processes: int) -> str:
    """Return why processes cannot add up a number together; empty when they can."""
    fork = multiprocessing.get_context("fork")
    ranks = [
        fork.Process(target=_join, args=(folder, rank, processes)) for rank in range(processes)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(2 * MOST_SECONDS)
        rank.kill()
        rank.join()
    if all(rank.exitcode == 0 for rank in ranks):
        return ""
    notes = [file.read_text() for file in sorted(folder.glob("rendezvous-*.txt"))]
    return notes[0] if notes else f"exit codes {[rank.exitcode for rank in ranks]}"


def _join(folder: Path, rank: int, processes: int) -> None:
    code = 1
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank,
            world_size=processes, timeout=timedelta(seconds=MOST_SECONDS),
        )  # fmt: skip
        total = torch.ones(())
        dist.all_reduce(total)
        code = int(total != processes)
    except Exception as error:  # any error is the reported reason
        (folder / f"rendezvous-{rank}.txt").write_text(" ".join(str(error).split())[:200])
    os._exit(code)
