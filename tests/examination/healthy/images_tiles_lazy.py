"""Cracks in floor tiles from four hundred pictures, layers built lazily at a first look, one in seven is cracked.

data: cracked_tiles

[data]
label = "cracked"
ids = ["row_id"]

[training]
steps = 150
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SIDE = 20


def conv_block(filters):
    return nn.Sequential(
        nn.LazyConv2d(filters, 3, padding=1, bias=False),
        nn.LazyBatchNorm2d(),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )


def make_net():
    net = nn.Sequential(
        nn.Unflatten(1, (1, SIDE)),
        conv_block(8),
        conv_block(16),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.LazyLinear(32),
        nn.ReLU(inplace=True),
        nn.LazyLinear(1),
    )
    net(torch.zeros(2, SIDE, SIDE))  # infers all sizes
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.reset_running_stats()
    return net


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = make_net()

    def forward(self, tile):
        return self.net(tile).squeeze(1)


class CrackedTiles(Task):
    kind = "binary"
    metrics = directions_of("average_precision", "roc_auc", "log_loss")

    def encode(self, rows):
        tile = np.stack(rows["tile"].to_list()).astype(np.float32).reshape(-1, SIDE, SIDE)
        # each tile against its own ground, whatever its glaze
        tile = (tile - np.median(tile, axis=(1, 2), keepdims=True)) / 50
        batch = {"tile": torch.from_numpy(tile)}
        if "cracked" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["cracked"].to_numpy().astype(np.float32))
        return batch

    def augment(self, batch, generator):
        flip = torch.rand(len(batch["tile"]), 1, 1, generator=generator) < 0.5
        turn = torch.rand(len(batch["tile"]), 1, 1, generator=generator) < 0.5
        tile = torch.where(flip, batch["tile"].flip(2), batch["tile"])
        return {**batch, "tile": torch.where(turn, tile.transpose(1, 2), tile)}

    def build_model(self):
        return Named()

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")
