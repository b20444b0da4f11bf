"""Part-of-speech tags (the sequence tutorial, both ways): a label per word, sentences weighed by words.

data: tagged_sentences

[data]
label = "tags"
features = ["sentence"]
text = ["sentence"]
ids = ["row_id"]

[training]
steps = 150
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 5e-3 }
"""
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, WEIGHT, Task

LONGEST = 12


class LSTMTagger(nn.Module):
    def __init__(self, vocab_size, tagset_size, embedding_dim=24, hidden_dim=24):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, embedding_dim, padding_idx=0)
        self.lstm = nn.LSTM(embedding_dim, hidden_dim, bidirectional=True, batch_first=True)
        self.hidden2tag = nn.Linear(2 * hidden_dim, tagset_size)

    def forward(self, sentence):
        lstm_out, _ = self.lstm(self.word_embeddings(sentence))
        return self.hidden2tag(lstm_out)


class Tagger(Task):
    kind = "statistic"
    metrics = {"word_accuracy": "maximize"}

    def fit(self, train):
        df = train.select("sentence", "tags").collect()
        self.words = sorted({w for s in df["sentence"] for w in s.split()})
        self.tags = sorted({t for s in df["tags"] for t in s.split()})

    def state(self):
        return {"words": self.words, "tags": self.tags}

    def load_state(self, state):
        self.words, self.tags = state["words"], state["tags"]

    def encode(self, rows):
        word_to_ix = {w: i + 2 for i, w in enumerate(self.words)}
        sentence = torch.zeros(len(rows), LONGEST, dtype=torch.long)
        for i, text in enumerate(rows["sentence"]):
            ids = [word_to_ix.get(w, 1) for w in text.split()][:LONGEST]
            sentence[i, : len(ids)] = torch.tensor(ids)
        batch = {"sentence": sentence}
        if "tags" in rows.columns:
            tag_to_ix = {t: i for i, t in enumerate(self.tags)}
            target = torch.full((len(rows), LONGEST), -100)
            for i, text in enumerate(rows["tags"]):
                ids = [tag_to_ix.get(t, -100) for t in text.split()][:LONGEST]
                target[i, : len(ids)] = torch.tensor(ids)
            batch[LABEL], batch[WEIGHT] = target, (target != -100).sum(1).float()
        return batch

    def build_model(self):
        return LSTMTagger(len(self.words) + 2, len(self.tags))

    def losses(self, output, batch):
        each = F.cross_entropy(output.mT, batch[LABEL], ignore_index=-100, reduction="none")
        return each.sum(1) / (batch[LABEL] != -100).sum(1).clamp(min=1)

    def predict(self, output):
        return output.argmax(-1)

    def statistic(self, output, batch):
        known = batch[LABEL] != -100
        right = (output.argmax(-1) == batch[LABEL]) & known
        return right.sum(1) / known.sum(1).clamp(min=1)

    def score(self, predictions, labels):
        return {"word_accuracy": float(np.average(predictions.reshape(-1), weights=labels))}

    def expected_initial_loss(self):
        return math.log(len(self.tags))
