"""Masked letters after BERT: masks drawn again while training (RoBERTa), by the text's checksum in judgement.

data: corpus

[data]
label = "text"
features = ["text"]
text = ["text"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 3e-3 }
"""
import math
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, WEIGHT, Task

PAD, UNK, MASK, LENGTH = 0, 1, 2, 64


class MaskedLM(nn.Module):
    def __init__(self, n, dim=48):
        super().__init__()
        self.emb = nn.Embedding(n, dim, padding_idx=PAD)
        self.near = nn.Conv1d(dim, dim, 7, padding=3)  # positions by convolution, as in wav2vec 2.0
        layer = nn.TransformerEncoderLayer(dim, 4, 96, dropout=0.0, batch_first=True, norm_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 1, norm=nn.LayerNorm(dim), enable_nested_tensor=False)
        self.decoder = nn.Linear(dim, n)
        nn.init.normal_(self.decoder.weight, std=0.02)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, ids):
        x = self.emb(ids)
        x = x + F.gelu(self.near(x.mT)).mT
        return self.decoder(self.encoder(x, src_key_padding_mask=ids == PAD))


class Cloze(Task):
    kind = "statistic"
    metrics = {"bits_per_masked_letter": "minimize"}
    reconstructs_inputs = True

    def fit(self, train):
        letters = set("".join(train.select("text").collect()["text"]))
        self.letters = sorted(letters)

    def state(self):
        return {"letters": self.letters}

    def load_state(self, state):
        self.letters = state["letters"]

    def encode(self, rows):
        index = {c: i + 3 for i, c in enumerate(self.letters)}
        ids = torch.full((len(rows), LENGTH), PAD)
        hidden = torch.zeros(len(rows), LENGTH, dtype=torch.bool)
        for i, text in enumerate(rows["text"]):
            known = [index.get(c, UNK) for c in text[:LENGTH]]
            ids[i, : len(known)] = torch.tensor(known)
            hidden[i, zlib.crc32(text.encode()) % 7 : len(known) : 7] = True
        return {"ids": ids.masked_fill(hidden, MASK), **self.asked(ids, hidden)}

    def asked(self, ids, hidden):
        return {LABEL: ids.masked_fill(~hidden, -100), WEIGHT: hidden.sum(1).float()}

    def augment(self, batch, generator):
        ids = torch.where(batch[LABEL] == -100, batch["ids"], batch[LABEL])
        draw = torch.rand(ids.shape, generator=generator)
        hidden = (draw < 0.15) & (ids != PAD)
        shown = ids.masked_fill(hidden & (draw < 0.12), MASK)  # four in five are hidden
        other = torch.randint(3, 3 + len(self.letters), ids.shape, generator=generator)
        shown = torch.where(hidden & (draw >= 0.12) & (draw < 0.135), other, shown)
        return {"ids": shown, **self.asked(ids, hidden)}

    def build_model(self):
        return MaskedLM(len(self.letters) + 3)

    def losses(self, output, batch):
        each = F.cross_entropy(output.mT, batch[LABEL], ignore_index=-100, reduction="none")
        return each.sum(1) / (batch[LABEL] != -100).sum(1).clamp(min=1)

    def predict(self, output):
        return output.argmax(-1)

    def statistic(self, output, batch):
        return self.losses(output, batch)

    def score(self, predictions, labels):
        return {"bits_per_masked_letter": float(np.average(predictions.reshape(-1), weights=labels) / math.log(2))}

    def expected_initial_loss(self):
        return math.log(len(self.letters) + 3)
