"""Mult-VAE: what was played, dropped out and normalised, tells the held-out songs.

data: playlists

[data]
label = "held_out"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, Task


class MultVAE(nn.Module):
    def __init__(self, n, hidden=48, latent=12):
        super().__init__()
        self.latent = latent
        self.drop = nn.Dropout(0.3)
        self.q1, self.q2 = nn.Linear(n, hidden), nn.Linear(hidden, 2 * latent)
        self.p1, self.p2 = nn.Linear(latent, hidden), nn.Linear(hidden, n)
        nn.init.normal_(self.q2.weight, std=0.01)
        nn.init.normal_(self.p2.weight, std=0.01)
        nn.init.zeros_(self.p2.bias)

    def forward(self, played):
        h = torch.tanh(self.q1(self.drop(F.normalize(played, dim=1))))
        mu, logvar = self.q2(h).chunk(2, dim=1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar) if self.training else mu
        logits = self.p2(torch.tanh(self.p1(z)))
        # what was played already is not recommended again
        return torch.cat([logits.masked_fill(played > 0, -30.0), mu, logvar], dim=1)


class Playlists(Task):
    kind = "statistic"
    metrics = {"recall_at_10": "maximize"}
    beta = 0.1

    def fit(self, train):
        df = train.select("played", "held_out").collect()
        self.songs = sorted({*df["played"].explode(), *df["held_out"].explode()})
        lengths = df["played"].list.len().to_numpy()
        self.start = float(np.log(len(self.songs) - lengths).mean())

    def state(self):
        return {"songs": self.songs, "start": self.start}

    def load_state(self, state):
        self.songs, self.start = state["songs"], state["start"]

    def many_hot(self, column):
        code = {song: k for k, song in enumerate(self.songs)}
        out = torch.zeros(len(column), len(code))
        for row, songs in enumerate(column.to_list()):
            out[row, [code[s] for s in songs if s in code]] = 1.0
        return out

    def encode(self, rows):
        batch = {"played": self.many_hot(rows["played"])}
        if "held_out" in rows.columns:
            batch[LABEL] = self.many_hot(rows["held_out"])
        return batch

    def build_model(self):
        return MultVAE(len(self.songs))

    def losses(self, output, batch):
        held = batch[LABEL]
        log_p = output[:, : held.shape[1]].log_softmax(dim=1)
        return -(log_p * held).sum(1) / held.sum(1).clamp(min=1)

    def training_losses(self, output, batch):
        mu, logvar = output[:, batch[LABEL].shape[1] :].chunk(2, dim=1)
        kl = -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum(1)
        return self.losses(output, batch) + self.beta * kl

    def predict(self, output):
        return output[:, : len(self.songs)].softmax(dim=1)

    def statistic(self, output, batch):
        held = batch[LABEL]
        best = output[:, : held.shape[1]].topk(10, dim=1).indices
        return held.gather(1, best).sum(1) / held.sum(1).clamp(min=1, max=10)

    def score(self, predictions, labels):
        return {"recall_at_10": float(np.average(predictions.reshape(-1), weights=labels))}

    def expected_initial_loss(self):
        return self.start
