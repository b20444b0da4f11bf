"""The word embeddings tutorial's n-gram model: four words in, the next one out.

data: next_words

[data]
label = "next_word"
ids = ["row_id"]

[training]
steps = 600
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CONTEXT_SIZE = 4
EMBEDDING_DIM = 24


class NGramLanguageModeler(nn.Module):
    def __init__(self, vocab_size, n_out):
        super().__init__()
        self.embeddings = nn.Embedding(vocab_size, EMBEDDING_DIM)
        self.linear1 = nn.Linear(CONTEXT_SIZE * EMBEDDING_DIM, 96)
        self.linear2 = nn.Linear(96, n_out)

    def forward(self, context):
        embeds = self.embeddings(context).flatten(1)
        return self.linear2(F.relu(self.linear1(embeds)))


class NextWord(Task):
    kind = "multiclass"
    metrics = directions_of("log_loss", "top_5_accuracy", "accuracy")

    def fit(self, train):
        df = train.select("w1", "w2", "w3", "w4", "next_word").collect()
        self.vocab = ["<oov>", *sorted(set().union(*(df[c] for c in df.columns)) - {"<oov>"})]

    def state(self):
        return {"vocab": self.vocab}

    def load_state(self, state):
        self.vocab = state["vocab"]

    def encode(self, rows):
        word_to_ix = {word: i for i, word in enumerate(self.vocab)}
        context = torch.tensor([[word_to_ix.get(w, 0) for w in r] for r in rows.select("w1", "w2", "w3", "w4").iter_rows()])
        out = {"context": context}
        if "next_word" in rows.columns:
            out[LABEL] = torch.tensor([word_to_ix.get(w, 0) for w in rows["next_word"]])
        return out

    def build_model(self):
        return NGramLanguageModeler(len(self.vocab), len(self.vocab))

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return F.softmax(output, dim=1)

    def expected_initial_loss(self):
        return math.log(len(self.vocab))
