"""What ranks do in the tests of shared scoring: score a split together."""

import pickle
from pathlib import Path

import torch
from torch import nn

from perennial.contracts.data import Split
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.engine.evaluation.scoring import Share, read_together, share_batches, write_scores
from perennial.engine.world.distributed import World
from tiny_training import TinyOptions, TinyTask

KEPT = ("id", "y")


class FewAtOnce(TinyTask):
    """So few rows in each forward pass that a small split has several."""

    scoring_rows = 7


def trained(dataset: Dataset, rows_at_once: int) -> tuple[FewAtOnce, nn.Module]:
    """The task, fitted, and a model with the same weights in every process."""
    task = FewAtOnce(TinyOptions(), dataset.snapshot.task_columns)
    task.fit(dataset.scan(Split.TRAIN))
    task.scoring_rows = rows_at_once
    torch.manual_seed(3)
    return task, task.build_model()


def score_share(folder, task, model, dataset, share, *, keep=()):
    """The files of one process's share of the validation split."""
    batches = share_batches(task, model, dataset, Split.VALIDATION, share, keep=keep)
    return write_scores(batches, folder / f"{share.rank}")


def score_validation(snapshot: Path, rows_at_once: int, result: Path) -> int:
    """All ranks score the validation split; what the first has goes into a file."""
    world = World.join()
    dataset = Dataset(Snapshot.read(snapshot))
    task, model = trained(dataset, rows_at_once)
    share = Share(world.rank, world.size)
    files = score_share(result.parent, task, model, dataset, share, keep=KEPT)
    parts = world.to_first(files)
    assert (parts is None) == (world.rank > 0)
    if parts is not None:
        result.write_bytes(pickle.dumps(read_together(parts)))
    world.barrier()
    return 0
