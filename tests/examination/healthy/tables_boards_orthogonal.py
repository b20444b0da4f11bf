"""Ends of noughts and crosses: nine small embeddings through einsum, an orthogonal layer; there is no noise to leave over.

data: final_boards

[data]
label = "x_wins"
ids = ["row_id"]

[training]
steps = 600
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 1e-2, weight_decay = 1e-3 }
"""
import torch
from torch import nn
from torch.nn.utils.parametrizations import orthogonal

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SYMBOLS = {"b": 0, "x": 1, "o": 2}


class BoardNet(nn.Module):
    def __init__(self, cells=9, width=4, hidden=48):
        super().__init__()
        self.table = nn.Parameter(torch.randn(cells, 3, width) * 0.5)
        self.mix = orthogonal(nn.Linear(cells * width, cells * width))
        self.hidden = nn.Linear(cells * width, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, board):
        one_hot = nn.functional.one_hot(board, 3).to(self.table.dtype)
        cells = torch.einsum("bcs,csw->bcw", one_hot, self.table)
        h = torch.relu(self.mix(cells.flatten(1)))
        return self.out(torch.relu(self.hidden(h)))


class NoughtsAndCrosses(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss", "accuracy")

    def encode(self, rows):
        cells = [name for name in self.columns.features]
        board = [[SYMBOLS[s] for s in row] for row in rows.select(cells).iter_rows()]
        batch = {"board": torch.tensor(board)}
        if self.columns.label in rows.columns:
            batch[LABEL] = torch.tensor([1.0 if v == "positive" else 0.0 for v in rows["x_wins"]])
        return batch

    def build_model(self):
        return BoardNet()

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output[:, 0], batch[LABEL], reduction="none")
