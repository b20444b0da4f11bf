"""Rent of a flat from its advert: words with their numbers into a convolution, on a log scale.

Mean error 18 %; 36 % for the median rent.

data: rental_adverts

[data]
label = "rent"
features = ["advert", "furnished"]
text = ["advert"]
ids = ["row_id"]

[training]
steps = 350
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3, weight_decay = 0.01 }
schedule = { shape = "cosine", warmup_fraction = 0.1 }
"""

import re
from collections import Counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

PAD, UNK = 0, 1
LENGTH = 52


def tokenize(text):
    """Words, with numbers as #; and the logarithm of each number."""
    found = re.findall(r"\d+(?:,\d+)?|[^\W\d]+", text.lower())
    values = [float(w.replace(",", ".")) if w[0].isdigit() else 0.0 for w in found]
    return [("#" if v else w, np.log1p(v)) for w, v in zip(found, values)]


class AdvertCNN(nn.Module):
    def __init__(self, vocab, dim=24, channels=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.convs = nn.ModuleList([nn.Conv1d(dim + 1, channels, k, padding=k - 1) for k in (2, 3)])
        self.fc = nn.Sequential(nn.Linear(2 * channels + 1, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, words, values, furnished):
        x = torch.cat([self.embed(words), values[..., None]], dim=2).transpose(1, 2)
        pooled = [F.relu(conv(x)).amax(dim=2) for conv in self.convs]
        return self.fc(torch.cat([*pooled, furnished], dim=1)).squeeze(1)


class RentalAdverts(Task):
    kind = "regression"
    metrics = directions_of("mape", "mae", "r2")

    def fit(self, train):
        df = train.collect()
        counts = Counter(w for text in df["advert"] for w, _ in tokenize(text))
        logs = np.log(df["rent"].to_numpy())
        self.fitted = {
            "words": sorted(w for w, n in counts.items() if n > 2),
            "rent": [float(logs.mean()), float(logs.std())],
        }

    def encode(self, rows):
        index = {w: k for k, w in enumerate(self.fitted["words"], start=2)}
        words = torch.full((rows.height, LENGTH), PAD)
        values = torch.zeros(rows.height, LENGTH)
        for i, text in enumerate(rows["advert"]):
            found = tokenize(text)[:LENGTH]
            words[i, : len(found)] = torch.tensor([index.get(w, UNK) for w, _ in found])
            values[i, : len(found)] = torch.tensor([float(v) for _, v in found])
        batch = {
            "words": words,
            "values": values,
            "furnished": torch.tensor(rows["furnished"].to_list()).float()[:, None],
        }
        if "rent" in rows.columns:
            batch[LABEL] = torch.tensor(rows["rent"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return AdvertCNN(len(self.fitted["words"]) + 2)

    def losses(self, output, batch):
        mean, std = self.fitted["rent"]
        return F.smooth_l1_loss(output, (batch[LABEL].log() - mean) / std, reduction="none")

    def predict(self, output):
        mean, std = self.fitted["rent"]
        return (output * std + mean).exp()
