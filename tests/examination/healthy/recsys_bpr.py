"""BPR: a song that was played must score above one that was skipped; margins over all songs.

data: song_triples

[data]
label = "played"
ids = ["row_id"]

[training]
steps = 150
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 1e-2 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task


class BPRMF(nn.Module):
    def __init__(self, listeners, songs, dim=6):
        super().__init__()
        self.listener, self.song = nn.Embedding(listeners, dim), nn.Embedding(songs, dim)
        self.fame = nn.Embedding(songs, 1)
        nn.init.normal_(self.listener.weight, std=0.1)
        nn.init.normal_(self.song.weight, std=0.1)
        nn.init.zeros_(self.fame.weight)

    def forward(self, listener, skipped):
        scores = self.listener(listener) @ self.song.weight.T + self.fame.weight[:, 0]
        return scores - scores.gather(1, skipped[:, None])


class PersonalRanking(Task):
    kind = "statistic"
    metrics = {"pairs_in_order": "maximize"}
    l2 = 1e-3

    def fit(self, train):
        df = train.select("listener", "played", "skipped").collect()
        self.listeners = sorted(df["listener"].unique().to_list())
        self.songs = sorted({*df["played"], *df["skipped"]})

    def state(self):
        return {"listeners": self.listeners, "songs": self.songs}

    def load_state(self, state):
        self.listeners, self.songs = state["listeners"], state["songs"]

    @staticmethod
    def codes(column, known):
        code = {name: k + 1 for k, name in enumerate(known)}
        return torch.tensor([code.get(name, 0) for name in column])

    def encode(self, rows):
        batch = {
            "listener": self.codes(rows["listener"], self.listeners),
            "skipped": self.codes(rows["skipped"], self.songs),
        }
        if "played" in rows.columns:
            batch[LABEL] = self.codes(rows["played"], self.songs)
        return batch

    def build_model(self):
        return BPRMF(len(self.listeners) + 1, len(self.songs) + 1)

    def margin(self, output, batch):
        return output.gather(1, batch[LABEL][:, None])[:, 0]

    def losses(self, output, batch):
        return -nn.functional.logsigmoid(self.margin(output, batch))

    def training_losses(self, output, batch):
        return self.losses(output, batch) + self.l2 * output.square().mean(1)

    def predict(self, output):
        return output

    def statistic(self, output, batch):
        margin = self.margin(output, batch)
        return (margin > 0).double() + 0.5 * (margin == 0)

    def score(self, predictions, labels):
        return {"pairs_in_order": float(np.average(predictions.reshape(-1), weights=labels))}

    def expected_initial_loss(self):
        return math.log(2)
