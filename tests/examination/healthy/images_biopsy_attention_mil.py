"""Attention-based multiple instance learning (gated): a biopsy is a bag of patches of which one decides.

data: biopsies

[data]
label = "tumour"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 2e-3, weight_decay = 1e-3 }
"""
import torch
import torch.nn as nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

K, P = 9, 8  # at most nine patches of 8 x 8


class GatedAttention(nn.Module):
    def __init__(self, M=32, L=16):
        super().__init__()
        self.feature_extractor = nn.Sequential(
            nn.Conv2d(1, 12, kernel_size=3, padding=1), nn.ReLU(),
            nn.Conv2d(12, 16, kernel_size=3), nn.ReLU(), nn.MaxPool2d(2, stride=2),
            nn.Flatten(), nn.Linear(16 * 3 * 3, M), nn.ReLU(),
        )
        self.attention_V = nn.Linear(M, L)
        self.attention_U = nn.Linear(M, L)
        self.attention_w = nn.Linear(L, 1)
        self.classifier = nn.Linear(M, 1)

    def forward(self, bag, present):
        B = bag.shape[0]
        H = self.feature_extractor(bag.reshape(B * K, 1, P, P)).reshape(B, K, -1)
        A = self.attention_w(torch.tanh(self.attention_V(H)) * torch.sigmoid(self.attention_U(H))).squeeze(-1)
        A = A.masked_fill(~present, float("-inf"))
        A = torch.softmax(A, dim=1)
        Z = torch.einsum("bk,bkm->bm", A, H)
        return self.classifier(Z).squeeze(-1)


class BiopsyBags(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss", "accuracy")

    def fit(self, train):
        grey = train.select("patches").explode("patches").collect()["patches"]
        self.fitted = {"mean": grey.mean(), "std": grey.std(), "rate": train.select("tumour").collect()["tumour"].mean()}

    def encode(self, rows):
        bag = torch.zeros(rows.height, K, P, P)
        present = torch.zeros(rows.height, K, dtype=torch.bool)
        for i, flat in enumerate(rows["patches"].to_list()):
            patches = torch.tensor(flat[: K * P * P], dtype=torch.float32).view(-1, P, P)
            bag[i, : len(patches)] = (patches - self.fitted["mean"]) / self.fitted["std"]
            present[i, : len(patches)] = True
        batch = {"bag": bag, "present": present}
        if "tumour" in rows.columns:
            batch[LABEL] = torch.tensor(rows["tumour"].to_list(), dtype=torch.float32)
        return batch

    def augment(self, batch, generator):
        """Bags are sets: turn all of their patches alike, at random."""
        k = int(torch.randint(4, (1,), generator=generator))
        return {**batch, "bag": torch.rot90(batch["bag"], k, (2, 3))}

    def build_model(self):
        return GatedAttention()

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")
