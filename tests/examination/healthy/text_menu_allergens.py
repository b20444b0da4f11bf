"""Allergens of dishes from their names: five labels, of which many are not declared.

Loss 0.29 a declared label; 0.65 for the shares of each allergen.

data: menu_dishes

[data]
label = "allergens"
features = ["dish"]
text = ["dish"]
ids = ["row_id"]

[training]
steps = 250
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3, weight_decay = 0.05 }
schedule = { shape = "cosine" }
"""

from collections import Counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, WEIGHT, Task

ALLERGENS = ["gluten", "milk", "egg", "nuts", "fish"]
PAD, UNK = 0, 1
LENGTH = 24


def tokenize(dish):
    words = dish.lower().split()
    return words + [f"{a}_{b}" for a, b in zip(words, words[1:])]


class BagOfWords(nn.Module):
    def __init__(self, vocab, dim=32):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, dim, mode="sum", padding_idx=PAD)
        nn.init.normal_(self.bag.weight, std=0.1)
        self.head = nn.Sequential(
            nn.LayerNorm(dim), nn.Dropout(0.2), nn.Linear(dim, 32), nn.ReLU(), nn.Linear(32, 5)
        )

    def forward(self, tokens):
        return self.head(self.bag(tokens))


class MenuAllergens(Task):
    kind = "statistic"
    metrics = {"label_loss": "minimize", "error_rate": "minimize"}
    serves_predictions = True
    prediction_names = ALLERGENS

    def fit(self, train):
        counts = Counter(t for dish in train.collect()["dish"] for t in tokenize(dish))
        self.fitted = {"vocab": sorted(t for t, n in counts.items() if n >= 3)}

    def encode(self, rows):
        index = {t: k for k, t in enumerate(self.fitted["vocab"], start=2)}
        tokens = torch.full((rows.height, LENGTH), PAD)
        for i, dish in enumerate(rows["dish"]):
            ids = [index.get(t, UNK) for t in tokenize(dish)][:LENGTH]
            tokens[i, : len(ids)] = torch.tensor(ids)
        batch = {"tokens": tokens}
        if "allergens" in rows.columns:
            declared = np.array(rows["allergens"].to_list(), dtype=float)
            batch[LABEL] = torch.tensor(declared, dtype=torch.float32)
            batch[WEIGHT] = (~batch[LABEL].isnan()).sum(dim=1).float()
        return batch

    def build_model(self):
        return BagOfWords(len(self.fitted["vocab"]) + 2)

    def losses(self, output, batch):
        known = ~batch[LABEL].isnan()
        target = torch.where(known, batch[LABEL], 0)
        loss = F.binary_cross_entropy_with_logits(output, target, reduction="none")
        return (loss * known).sum(dim=1) / known.sum(dim=1).clamp(min=1)

    def predict(self, output):
        return output.sigmoid()

    def statistic(self, output, batch):
        known = ~batch[LABEL].isnan()
        wrong = ((self.predict(output) > 0.5) != (batch[LABEL] > 0.5)) & known
        share = wrong.sum(dim=1) / known.sum(dim=1).clamp(min=1)
        return torch.stack([self.losses(output, batch), share], dim=1).double()

    def score(self, predictions, labels):
        loss, share = np.average(predictions, axis=0, weights=labels)
        return {"label_loss": float(loss), "error_rate": float(share)}
