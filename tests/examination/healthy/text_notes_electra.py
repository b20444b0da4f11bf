"""ELECTRA's discriminator without its generator: some words are exchanged by their frequency, the model tells which; drawn again while training.

data: kitchen_notes

[data]
label = "note"
features = ["note"]
text = ["note"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import zlib

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from perennial.engine.task import LABEL, WEIGHT, Task

L = 20
PAD, UNK = 0, 1
RATE = 0.15


class Discriminator(nn.Module):
    def __init__(self, vocab, d=48):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d, padding_idx=PAD), nn.Parameter(0.02 * torch.randn(L, d))
        self.enc = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True), 2, enable_nested_tensor=False
        )
        self.head = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d), nn.GELU(), nn.Linear(d, 1))

    def forward(self, ids):
        h = self.enc(self.tok(ids) + self.pos, src_key_padding_mask=ids.eq(PAD))
        return self.head(h).squeeze(-1)


class ReplacedWords(Task):
    kind = "statistic"
    metrics = {"bce": "minimize", "recall": "maximize"}
    reconstructs_inputs = True

    def fit(self, train):
        words = [w for note in train.collect()["note"] for w in note.split()]
        vocab = sorted(set(words))
        self.fitted = {"vocab": vocab, "freq": [words.count(w) for w in vocab]}

    def exchange(self, ids, draws, picks):
        """Which words are replaced, and by what: `draws` and `picks` are uniform."""
        freq = torch.tensor(self.fitted["freq"], dtype=torch.float64)
        other = torch.searchsorted(freq.cumsum(0) / freq.sum(), picks.double()).clamp(max=len(freq) - 1) + 2
        chosen = (draws < RATE) & (ids != PAD)
        shown = torch.where(chosen, other, ids)
        target = torch.where(ids == PAD, -1.0, (shown != ids).float())
        return shown, target

    def encode(self, rows):
        lookup = {w: i for i, w in enumerate(self.fitted["vocab"], start=2)}
        ids = torch.zeros(len(rows), L, dtype=torch.long)
        uniform = np.zeros((2, len(rows), L))
        for i, note in enumerate(rows["note"]):
            words = [lookup.get(w, UNK) for w in note.split()[:L]]
            ids[i, : len(words)] = torch.tensor(words)
            uniform[:, i] = np.random.default_rng(zlib.crc32(note.encode())).random((2, L))
        shown, target = self.exchange(ids, *torch.from_numpy(uniform))
        # the label keeps the true words beside the answer, for the next exchange
        return {"ids": shown, LABEL: torch.stack([target, ids.float()], 2), WEIGHT: (ids != PAD).sum(1).float()}

    def augment(self, batch, generator):
        ids = batch[LABEL][..., 1].long()
        draws, picks = torch.rand(2, *ids.shape, generator=generator)
        shown, target = self.exchange(ids, draws, picks)
        return {**batch, "ids": shown, LABEL: torch.stack([target, ids.float()], 2)}

    def build_model(self):
        return Discriminator(len(self.fitted["vocab"]) + 2)

    def losses(self, output, batch):
        target = batch[LABEL][..., 0]
        real = target >= 0
        each = binary_cross_entropy_with_logits(output, target.clamp(min=0), reduction="none")
        return (each * real).sum(1) / real.sum(1).clamp(min=1)

    def predict(self, output):
        return output.sigmoid()

    def statistic(self, output, batch):
        target = batch[LABEL][..., 0]
        n = (target >= 0).sum(1).clamp(min=1)
        hit = ((output > 0) & (target == 1)).sum(1) / n
        return torch.stack([self.losses(output, batch), hit, (target == 1).sum(1) / n], 1).double()

    def score(self, predictions, labels):
        loss, hit, there = (predictions * labels[:, None]).sum(0)
        return {"bce": float(loss / labels.sum()), "recall": float(hit / max(there, 1e-9))}
