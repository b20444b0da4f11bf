"""Which sign was drawn? Offsets of the pen, as in Quick, Draw!, read by a packed LSTM.

data: pen_sketches

[data]
label = "sign"
features = ["right", "up", "lifted"]
ids = ["row_id"]
meta = ["app"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 4e-3 }
schedule = { shape = "cosine" }
"""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MAX_POINTS = 64


class SketchRNN(nn.Module):
    """Sorted and packed, as in the classic tutorials; the batch's order comes back at the end."""

    def __init__(self, n_classes, hidden=48):
        super().__init__()
        self.lstm = nn.LSTM(3, hidden, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * hidden, n_classes)
        self.dropout = nn.Dropout(0.2)

    def forward(self, points, length):
        length, order = length.sort(descending=True)
        packed = pack_padded_sequence(points[order], length.cpu(), batch_first=True)
        _, (h, _) = self.lstm(packed)
        h = torch.cat([h[0], h[1]], dim=1)
        h = h[order.argsort()]
        return self.fc(self.dropout(h))


class Sketches(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss", "macro_f1")

    def fit(self, train):
        df = train.select("right", "up", "sign").collect()
        steps = np.concatenate(df["right"].to_list() + df["up"].to_list())
        self.fitted = {"scale": float(steps.std()), "signs": sorted(df["sign"].unique())}

    def encode(self, rows):
        points = np.zeros((rows.height, MAX_POINTS, 3), dtype=np.float32)
        length = np.ones(rows.height, dtype=np.int64)
        scale = self.fitted["scale"]
        for i, (dx, dy, up) in enumerate(rows.select("right", "up", "lifted").iter_rows()):
            n = min(len(dx), MAX_POINTS)
            points[i, :n, 0] = np.array(dx[:n]) / scale
            points[i, :n, 1] = np.array(dy[:n]) / scale
            points[i, :n, 2] = up[:n]
            length[i] = max(n, 1)
        batch = {"points": torch.from_numpy(points), "length": torch.from_numpy(length)}
        if "sign" in rows.columns:
            number = {sign: i for i, sign in enumerate(self.fitted["signs"])}
            batch[LABEL] = torch.tensor([number[s] for s in rows["sign"]])
        return batch

    def augment(self, batch, generator):
        points = batch["points"].clone()
        size = 0.8 + 0.4 * torch.rand(len(points), 1, 2, generator=generator)
        points[:, :, :2] *= size
        return {**batch, "points": points}

    def build_model(self):
        return SketchRNN(len(self.fitted["signs"]))

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")
