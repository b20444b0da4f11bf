"""Named entities with a conditional random field over a two-way LSTM (the advanced tutorial, vectorised).

data: named_entities

[data]
label = "tags"
text = ["sentence"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 1e-2 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

TAGS, WORDS = 5, 10


class BiLSTM_CRF(nn.Module):
    def __init__(self, vocab, dim=24):
        super().__init__()
        self.word_embeds = nn.Embedding(vocab, dim)
        self.lstm = nn.LSTM(dim, dim // 2, batch_first=True, bidirectional=True)
        self.hidden2tag = nn.Linear(dim, TAGS)
        self.transitions = nn.Parameter(torch.zeros(TAGS, TAGS))
        nn.init.zeros_(self.hidden2tag.weight)
        nn.init.zeros_(self.hidden2tag.bias)

    def forward(self, sentence):
        hidden, _ = self.lstm(self.word_embeds(sentence))
        emissions = self.hidden2tag(hidden)
        moves = self.transitions.expand(len(sentence), TAGS, TAGS)
        return torch.cat([emissions, moves], 1)


def log_partition(emissions, moves):
    alpha = emissions[:, 0]
    for step in range(1, WORDS):
        alpha = torch.logsumexp(alpha[:, :, None] + moves, 1) + emissions[:, step]
    return alpha.logsumexp(1)


def path_score(emissions, moves, tags):
    score = emissions.gather(2, tags[..., None])[..., 0].sum(1)
    rows = torch.arange(len(tags))[:, None]
    return score + moves[rows, tags[:, :-1], tags[:, 1:]].sum(1)


def viterbi(emissions, moves):
    score, back = emissions[:, 0], []
    for step in range(1, WORDS):
        best, origin = (score[:, :, None] + moves).max(1)
        back.append(origin)
        score = best + emissions[:, step]
    path = [score.argmax(1)]
    for origin in reversed(back):
        path.append(origin.gather(1, path[-1][:, None])[:, 0])
    return torch.stack(path[::-1], 1)


class Entities(Task):
    kind = "statistic"
    metrics = {"tag_accuracy": "maximize"}

    def fit(self, train):
        words = sorted({w for s in train.select("sentence").collect()["sentence"] for w in s.split()})
        self.fitted = {"word_to_ix": {w: i + 1 for i, w in enumerate(words)}}

    def encode(self, rows):
        to_ix = self.fitted["word_to_ix"]
        batch = {"sentence": torch.tensor([[to_ix.get(w, 0) for w in s.split()] for s in rows["sentence"]])}
        if "tags" in rows.columns:
            batch[LABEL] = torch.tensor(rows["tags"].to_list())
        return batch

    def build_model(self):
        return BiLSTM_CRF(len(self.fitted["word_to_ix"]) + 1)

    def losses(self, output, batch):
        emissions, moves = output[:, :WORDS], output[:, WORDS:]
        return log_partition(emissions, moves) - path_score(emissions, moves, batch[LABEL])

    def predict(self, output):
        return viterbi(output[:, :WORDS], output[:, WORDS:]).float()

    def statistic(self, output, batch):
        return (self.predict(output).long() == batch[LABEL]).double().mean(1)

    def score(self, predictions, labels):
        return {"tag_accuracy": float(np.average(predictions.ravel(), weights=labels))}

    def expected_initial_loss(self):
        return WORDS * math.log(TAGS)
