"""A model with square blocks, of which an adapter is a small part, and bases that a test stores."""

from torch import nn

from tiny_training import FEATURES, TinyTask, tiny_job

ADAPTER = {"targets": ["blocks.1.*", "blocks.3.*"], "rank": 1, "alpha": 2.0, "whole": ["head.bias"]}
WIDTH = 768


class SquareTask(TinyTask):
    """Regression on a network of square layers."""

    def build_model(self):
        return SquareModel(self.options)


class SquareModel(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.embedding = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(options.dropout))
            for _ in range(4)
        )
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def square_job(root, *, initial, **changes):
    """A job that adapts stored weights, over the snapshot made by `write_snapshot(root)`."""
    job = tiny_job(root, **changes)
    model = job.model.model_copy(update={"task": "adapted_training:SquareTask"})
    return job.model_copy(update={"model": model, "initial": initial})
