"""Where a protein goes, letter by letter: one-hot residues, dilated residual convolutions with group norm, smoothed labels.

data: proteins

[data]
label = "place"
ids = ["row_id"]

[training]
steps = 250
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3, weight_decay = 0.05 }
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

AA = "ACDEFGHIKLMNPQRSTVWY"
L = 100


def one_hot(seq):
    """[21, L]: twenty residues, and whether there is one at all."""
    x = np.zeros((len(AA) + 1, L), dtype=np.float32)
    for pos, aa in enumerate(seq[:L]):
        k = AA.find(aa)
        if k >= 0:
            x[k, pos] = 1
        x[-1, pos] = 1
    return x


class ResUnit(nn.Module):
    def __init__(self, ch, dilation):
        super().__init__()
        self.gn1 = nn.GroupNorm(4, ch)
        self.c1 = nn.Conv1d(ch, ch, 5, padding=2 * dilation, dilation=dilation)
        self.gn2 = nn.GroupNorm(4, ch)
        self.c2 = nn.Conv1d(ch, ch, 1)

    def forward(self, x):
        h = self.c1(F.relu(self.gn1(x)))
        return x + self.c2(F.relu(self.gn2(h)))


class Localiser(nn.Module):
    def __init__(self, n_out, ch=32):
        super().__init__()
        self.stem = nn.Conv1d(len(AA) + 1, ch, 7, padding=3)
        self.start = nn.Sequential(nn.Flatten(), nn.Linear(ch * 16, 32), nn.ReLU())  # the first residues say a lot
        self.units = nn.Sequential(ResUnit(ch, 1), ResUnit(ch, 2))
        self.drop = nn.Dropout(0.25)
        self.fc = nn.Linear(2 * ch + 32, n_out)

    def forward(self, residues):
        real = residues[:, -1:]
        x = self.units(self.stem(residues))
        mean = (x * real).sum(2) / real.sum(2).clamp(min=1)
        peak = (x - 1e4 * (1 - real)).amax(2)
        h = torch.cat([mean, peak, self.start(x[:, :, :16])], 1)
        return self.fc(self.drop(h))


class ProteinPlaces(Task):
    kind = "multiclass"
    metrics = directions_of("matthews_corrcoef", "accuracy", "log_loss")

    def fit(self, train):
        self.fitted = {"places": train.collect()["place"].unique().sort().to_list()}

    def encode(self, rows):
        batch = {"residues": torch.from_numpy(np.stack([one_hot(s) for s in rows["chain"]]))}
        if "place" in rows.columns:
            y = [self.fitted["places"].index(p) for p in rows["place"]]
            batch[LABEL] = torch.tensor(y, dtype=torch.long)
        return batch

    def build_model(self):
        return Localiser(len(self.fitted["places"]))

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none", label_smoothing=0.05)
