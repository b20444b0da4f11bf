"""What is plugged into a socket, from a trace of its watts with gaps and the hour: InceptionTime in small, homes kept whole.

data: socket_traces

[data]
label = "appliance"
group = "home"
features = ["watts", "began"]
ids = ["row_id"]

[training]
steps = 240
global_batch_size = 48
micro_batch_size = 48
optimizer = { learning_rate = 3e-3, weight_decay = 0.02 }
schedule = { shape = "cosine" }
averaging = { decay = 0.95 }
"""
import numpy as np
import pandas as pd
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class InceptionModule(nn.Module):
    def __init__(self, ni, nf, ks=(5, 9, 19), bottleneck=16):
        super().__init__()
        self.bottleneck = nn.Conv1d(ni, bottleneck, 1, bias=False) if ni > bottleneck else nn.Identity()
        width = bottleneck if ni > bottleneck else ni
        self.convs = nn.ModuleList([nn.Conv1d(width, nf, k, padding=k // 2, bias=False) for k in ks])
        self.maxconvpool = nn.Sequential(nn.MaxPool1d(3, stride=1, padding=1), nn.Conv1d(ni, nf, 1, bias=False))
        self.bn = nn.BatchNorm1d(nf * (len(ks) + 1))

    def forward(self, x):
        narrow = self.bottleneck(x)
        return torch.relu(self.bn(torch.cat([c(narrow) for c in self.convs] + [self.maxconvpool(x)], dim=1)))


class InceptionTime(nn.Module):
    def __init__(self, c_in, n_extra, c_out, nf=8):
        super().__init__()
        self.inception = nn.Sequential(InceptionModule(c_in, nf), InceptionModule(4 * nf, nf))
        self.shortcut = nn.Sequential(nn.Conv1d(c_in, 4 * nf, 1, bias=False), nn.BatchNorm1d(4 * nf))
        self.fc = nn.Sequential(nn.Dropout(0.2), nn.Linear(4 * nf + n_extra, c_out))

    def forward(self, trace, clock):
        x = torch.relu(self.inception(trace) + self.shortcut(trace))
        return self.fc(torch.cat([x.mean(dim=-1), clock], dim=1))


class Sockets(Task):
    kind = "multiclass"
    metrics = directions_of("macro_f1", "accuracy", "log_loss")

    def traces(self, rows):
        """log(1 + watts) with gaps filled along the time, and where the gaps were: two arrays [N, 96]."""
        watts = np.array(rows["watts"].to_list(), dtype=float)
        filled = pd.DataFrame(watts).interpolate(axis=1, limit_direction="both").fillna(0.0)
        return np.log1p(filled.to_numpy()), np.isnan(watts).astype(float)

    def fit(self, train):
        df = train.collect()
        level, _ = self.traces(df)
        self.fitted = {
            "mean": float(level.mean()),
            "std": float(level.std()),
            "vocab": sorted(df["appliance"].unique().to_list()),
        }

    def encode(self, rows):
        level, gaps = self.traces(rows)
        x = np.stack([(level - self.fitted["mean"]) / self.fitted["std"], gaps], axis=1)
        angle = 2 * np.pi * rows["began"].dt.hour().to_numpy() / 24
        clock = np.stack([np.sin(angle), np.cos(angle)], axis=1)
        batch = {"trace": torch.tensor(x, dtype=torch.float32), "clock": torch.tensor(clock, dtype=torch.float32)}
        if "appliance" in rows.columns:
            o2i = {v: k for k, v in enumerate(self.fitted["vocab"])}
            batch[LABEL] = torch.tensor([o2i[v] for v in rows["appliance"]])
        return batch

    def augment(self, batch, generator):
        trace = batch["trace"]
        shift = int(torch.randint(-12, 13, (1,), generator=generator))
        level = trace[:, :1] + 0.05 * torch.randn(len(trace), 1, 1, generator=generator)
        trace = torch.cat([level, trace[:, 1:]], dim=1)
        return {**batch, "trace": torch.roll(trace, shift, dims=-1)}

    def build_model(self):
        return InceptionTime(2, 2, len(self.fitted["vocab"]))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    @property
    def prediction_names(self):
        return self.fitted["vocab"]
