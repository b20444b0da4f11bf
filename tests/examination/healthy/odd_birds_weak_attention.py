"""Which birds sing in a clip, known for the whole clip alone: a probability per frame, pooled by attention over time (PANNs), BCELoss on clamped probabilities.

data: dawn_chorus

[data]
label = "singers"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
from sklearn.metrics import average_precision_score
from torch import nn

from perennial.engine.task import LABEL, Task

FRAMES, BANDS, BIRDS = 64, 12, 3


class AttBlock(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.att, self.cla = nn.Conv1d(n_in, n_out, 1), nn.Conv1d(n_in, n_out, 1)

    def forward(self, x):  # B, C, T
        norm_att = torch.softmax(torch.tanh(self.att(x)) * 3, dim=-1)
        return (norm_att * torch.sigmoid(self.cla(x))).sum(-1)


class WeakSED(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.bn = nn.BatchNorm1d(BANDS)
        self.features = nn.Sequential(
            nn.Conv1d(BANDS, c, 5, padding=2), nn.BatchNorm1d(c), nn.ReLU(),
            nn.Conv1d(c, c, 5, padding=2), nn.BatchNorm1d(c), nn.ReLU(),
        )
        self.att_block = AttBlock(c, BIRDS)

    def forward(self, bands):
        clip = self.att_block(self.features(self.bn(bands)))
        return torch.clamp(clip, 1e-6, 1 - 1e-6)


class DawnChorus(Task):
    kind = "statistic"
    metrics = {"map": "maximize"}

    def encode(self, rows):
        bands = torch.tensor(np.stack(rows["bands"].to_list()), dtype=torch.float32)
        batch = {"bands": bands.view(-1, FRAMES, BANDS).transpose(1, 2).contiguous()}
        if "singers" in rows.columns:
            batch[LABEL] = torch.tensor(rows["singers"].to_list(), dtype=torch.float32)
        return batch

    def augment(self, batch, generator):
        # SpecAugment: a stripe of bands and one of frames
        bands = batch["bands"].clone()
        t = int(torch.randint(0, FRAMES - 6, (1,), generator=generator))
        bands[:, :, t : t + 4] = 0
        shift = int(torch.randint(0, FRAMES, (1,), generator=generator))
        return {**batch, "bands": bands.roll(shift, dims=2)}

    def build_model(self):
        return WeakSED()

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy(output, batch[LABEL], reduction="none").mean(dim=1)

    def predict(self, output):
        return output

    def statistic(self, output, batch):
        return torch.cat([output, batch[LABEL]], dim=1).double()

    def score(self, predictions, labels):
        p, y = predictions[:, :BIRDS], predictions[:, BIRDS:]
        found = [average_precision_score(y[:, k], p[:, k], sample_weight=labels) for k in range(BIRDS) if y[:, k].any()]
        return {"map": float(np.mean(found))}
