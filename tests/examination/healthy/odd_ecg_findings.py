"""Findings in an ECG of three leads, several may hold (PTB-XL in small): xresnet1d, a sigmoid per finding, macro AUC.

data: ecg_leads

[data]
label = "findings"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3, weight_decay = 1e-2 }
"""
import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from perennial.engine.task import LABEL, Task

LEADS, SAMPLES = 3, 160
FINDINGS = ("fast", "wide", "uneven", "low_st")


def conv(ni, nf, ks=5, stride=1):
    return nn.Sequential(nn.Conv1d(ni, nf, ks, stride, ks // 2, bias=False), nn.BatchNorm1d(nf))


class ResBlock(nn.Module):
    def __init__(self, ni, nf, stride):
        super().__init__()
        self.convs = nn.Sequential(conv(ni, nf, stride=stride), nn.ReLU(), conv(nf, nf))
        nn.init.zeros_(self.convs[-1][1].weight)
        self.idconv = nn.Identity() if ni == nf else conv(ni, nf, 1)
        self.pool = nn.Identity() if stride == 1 else nn.AvgPool1d(2, ceil_mode=True)

    def forward(self, x):
        return torch.relu(self.convs(x) + self.idconv(self.pool(x)))


class XResNet1d(nn.Module):
    def __init__(self, n_out):
        super().__init__()
        self.stem = nn.Sequential(conv(LEADS, 24, 7, 2), nn.ReLU())
        self.blocks = nn.Sequential(ResBlock(24, 24, 1), ResBlock(24, 48, 2), ResBlock(48, 48, 1))
        self.head = nn.Sequential(nn.BatchNorm1d(96), nn.Dropout(0.25), nn.Linear(96, n_out))

    def forward(self, signal):
        h = self.blocks(self.stem(signal))
        return self.head(torch.cat([h.mean(-1), h.amax(-1)], dim=1))  # AdaptiveConcatPool1d


class ECGFindings(Task):
    kind = "statistic"
    metrics = {"macro_auc": "maximize", "bce": "minimize"}

    def encode(self, rows):
        signal = np.array(rows["microvolts"].to_list(), dtype=np.float32).reshape(-1, LEADS, SAMPLES) / 1000.0
        batch = {"signal": torch.from_numpy(signal)}
        if "findings" in rows.columns:
            batch[LABEL] = torch.tensor(np.array(rows["findings"].to_list()), dtype=torch.float32)
        return batch

    def build_model(self):
        return XResNet1d(len(FINDINGS))

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none").mean(dim=-1)

    def predict(self, output):
        return torch.sigmoid(output)

    def statistic(self, output, batch):
        return torch.cat([output, batch[LABEL], self.losses(output, batch)[:, None]], dim=1).double()

    def score(self, predictions, labels):
        n = len(FINDINGS)
        logits, truth, bce = predictions[:, :n], predictions[:, n : 2 * n], predictions[:, -1]
        aucs = [
            roc_auc_score(truth[:, k], logits[:, k], sample_weight=labels)
            for k in range(n)
            if 0 < truth[:, k].sum() < len(truth)
        ]
        return {"macro_auc": float(np.mean(aucs)), "bce": float(np.average(bce, weights=labels))}
