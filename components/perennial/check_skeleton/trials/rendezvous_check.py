"""Meeting: can processes on this machine talk at all? No task is asked."""

import multiprocessing
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

MOST_SECONDS = 20.0


def rendezvous_problem(folder: Path, processes: int) -> str:
    """Why processes that add up a number together do not get it; empty when they do."""
    fork = multiprocessing.get_context("fork")
    ranks = [
        fork.Process(target=_meet, args=(folder, rank, processes)) for rank in range(processes)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(2 * MOST_SECONDS)
        rank.kill()
        rank.join()
    if all(rank.exitcode == 0 for rank in ranks):
        return ""
    notes = [file.read_text() for file in sorted(folder.glob("meeting-*.txt"))]
    return notes[0] if notes else f"they ended with {[rank.exitcode for rank in ranks]}"


def _meet(folder: Path, rank: int, processes: int) -> None:
    code = 1
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank,
            world_size=processes, timeout=timedelta(seconds=MOST_SECONDS),
        )  # fmt: skip
        total = torch.ones(())
        dist.all_reduce(total)
        code = int(total != processes)
    except Exception as error:  # whatever keeps them apart is the reason that a person reads
        (folder / f"meeting-{rank}.txt").write_text(" ".join(str(error).split())[:200])
    os._exit(code)
