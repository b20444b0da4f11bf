"""Stages of sleep from three epochs of EEG: the same CNN reads each epoch, a GRU joins them.

data: sleep_epochs

[data]
label = "stage"
features = ["eeg"]
group = "sleeper"
ids = ["row_id"]
meta = ["age", "epoch"]

[split]
method = "group"

[training]
steps = 320
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
schedule = { shape = "cosine" }
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

STAGES = {"W": 0, "N1": 1, "N2": 2, "N3": 3, "REM": 4}
EPOCHS = 3
LEN = 160  # five seconds at 32 Hz
CLIP_UV = 250.0


class EpochEncoder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.conv1 = nn.Conv1d(1, 16, 17, stride=2, padding=8, bias=False)
        self.bn1 = nn.BatchNorm1d(16)
        self.conv2 = nn.Conv1d(16, dim, 5, padding=2, bias=False)
        self.bn2 = nn.BatchNorm1d(dim)

    def forward(self, x):
        x = F.max_pool1d(F.relu(self.bn1(self.conv1(x))), 4)
        x = F.relu(self.bn2(self.conv2(x)))
        return x.mean(dim=-1)


class SleepNet(nn.Module):
    def __init__(self, n_classes=len(STAGES)):
        super().__init__()
        self.encoder = EpochEncoder()
        self.gru = nn.GRU(32, 24, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.3)
        self.out = nn.Linear(48, n_classes)

    def forward(self, eeg):
        B, E, T = eeg.shape
        h = self.encoder(eeg.reshape(B * E, 1, T)).reshape(B, E, -1)
        h, _ = self.gru(h)
        middle = h[:, E // 2]  # the epoch that was scored
        return F.log_softmax(self.out(self.dropout(middle)), dim=-1)


class SleepStages(Task):
    kind = "multiclass"
    metrics = directions_of("macro_f1", "accuracy", "log_loss")

    def fit(self, train):
        df = train.select("eeg", "stage").collect()
        eeg = self.signals(df)
        counts = np.bincount([STAGES[s] for s in df["stage"]], minlength=len(STAGES))
        weights = np.sqrt(counts.sum() / (len(STAGES) * np.maximum(counts, 1)))
        self.fitted = {"std": float(eeg.std()), "class_weights": weights.tolist()}

    def signals(self, rows):
        eeg = np.array(rows["eeg"].to_list(), dtype=np.float32).reshape(-1, EPOCHS, LEN)
        return np.clip(eeg, -CLIP_UV, CLIP_UV)

    def encode(self, rows):
        eeg = self.signals(rows) / self.fitted["std"]
        batch = {"eeg": torch.from_numpy(eeg.astype(np.float32))}
        if "stage" in rows.columns:
            batch[LABEL] = torch.tensor([STAGES[s] for s in rows["stage"]])
        return batch

    def augment(self, batch, generator):
        eeg = batch["eeg"]
        gain = 0.8 + 0.4 * torch.rand(len(eeg), 1, 1, generator=generator)
        sign = torch.where(torch.rand(len(eeg), 1, 1, generator=generator) < 0.5, -1.0, 1.0)
        return {**batch, "eeg": eeg * gain * sign}

    def build_model(self):
        return SleepNet()

    def losses(self, output, batch):
        return F.nll_loss(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        weight = torch.tensor(self.fitted["class_weights"], dtype=output.dtype)
        return F.nll_loss(output, batch[LABEL], weight=weight, reduction="none")

    def predict(self, output):
        return output.exp()
