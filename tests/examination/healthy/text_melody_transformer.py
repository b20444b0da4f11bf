"""Tunes, a note at a time: nn.TransformerEncoder with a causal mask, as in PyTorch's language modelling tutorial.

data: melodies

[data]
label = "tune"
features = ["tune"]
text = ["tune"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, WEIGHT, Task

BLOCK = 20
PAD, BOS, UNK = 0, 1, 2


class MelodyLM(nn.Module):
    def __init__(self, ntoken, d_model=32, nhead=4, nlayers=2):
        super().__init__()
        self.embedding = nn.Embedding(ntoken, d_model)
        self.position = nn.Embedding(BLOCK, d_model)
        layer = nn.TransformerEncoderLayer(d_model, nhead, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, nlayers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(d_model)
        self.decoder = nn.Linear(d_model, ntoken)
        nn.init.normal_(self.decoder.weight, std=0.02)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, src):
        T = src.size(1)
        future = torch.ones(T, T, dtype=torch.bool, device=src.device).triu(diagonal=1)
        h = self.embedding(src) * math.sqrt(self.embedding.embedding_dim) / 4
        h = h + self.position(torch.arange(T, device=src.device))
        return self.decoder(self.norm(self.encoder(h, mask=future)))


class Melodies(Task):
    kind = "statistic"
    metrics = {"nats_per_note": "minimize"}
    tokens = "src"

    def fit(self, train):
        notes = {note for tune in train.select("tune").collect()["tune"] for note in tune.split()}
        self.fitted = {"notes": ["<pad>", "<bos>", "<unk>", *sorted(notes)]}

    def encode(self, rows):
        number = {note: i for i, note in enumerate(self.fitted["notes"])}
        tunes = [[number.get(note, UNK) for note in tune.split()][:BLOCK] for tune in rows["tune"]]
        src = np.full((len(tunes), BLOCK), PAD)
        target = np.full((len(tunes), BLOCK), -100)
        for i, tune in enumerate(tunes):
            src[i, : len(tune)] = [BOS, *tune[:-1]]
            target[i, : len(tune)] = tune
        return {
            "src": torch.from_numpy(src),
            LABEL: torch.from_numpy(target),
            WEIGHT: torch.tensor([float(len(tune)) for tune in tunes]),
        }

    def build_model(self):
        return MelodyLM(len(self.fitted["notes"]))

    def losses(self, output, batch):
        target = batch[LABEL]
        nll = F.cross_entropy(output.transpose(1, 2), target, ignore_index=-100, reduction="none")
        return nll.sum(1) / (target != -100).sum(1).clamp(min=1)

    def statistic(self, output, batch):
        return self.losses(output, batch)

    def score(self, predictions, labels):
        return {"nats_per_note": float(np.average(predictions.reshape(-1), weights=labels))}

    def expected_initial_loss(self):
        return math.log(len(self.fitted["notes"]))
