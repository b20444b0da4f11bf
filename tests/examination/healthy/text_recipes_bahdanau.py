"""Ingredients as written to entries of a shopping list: two GRUs and Bahdanau's attention, the right word is fed in training.

data: recipe_lines

[data]
label = "entry"
features = ["line", "entry"]
text = ["line", "entry"]
ids = ["row_id"]

[training]
steps = 350
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 3e-3 }
"""
import math

import torch
from torch import nn
from torch.nn import functional as F

from perennial.engine.task import LABEL, WEIGHT, Task

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SRC, TGT = 9, 8


class BahdanauAttention(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.Wa = nn.Linear(hidden, hidden)
        self.Ua = nn.Linear(hidden, hidden)
        self.Va = nn.Linear(hidden, 1)

    def forward(self, query, keys, mask):
        scores = self.Va(torch.tanh(self.Wa(query).unsqueeze(1) + self.Ua(keys))).squeeze(2)
        scores = scores.masked_fill(mask, float("-inf"))
        weights = torch.softmax(scores, dim=1)
        return (weights.unsqueeze(2) * keys).sum(dim=1)


class AttnSeq2Seq(nn.Module):
    def __init__(self, n_source, n_target, hidden=48):
        super().__init__()
        self.src_embedding = nn.Embedding(n_source, hidden, padding_idx=PAD)
        self.encoder = nn.GRU(hidden, hidden, batch_first=True)
        self.tgt_embedding = nn.Embedding(n_target, hidden, padding_idx=PAD)
        self.attention = BahdanauAttention(hidden)
        self.cell = nn.GRUCell(2 * hidden, hidden)
        self.out = nn.Linear(hidden, n_target)
        self.dropout = nn.Dropout(0.1)

    def forward(self, source, source_length, decoder_input):
        states, _ = self.encoder(self.dropout(self.src_embedding(source)))
        last = (source_length - 1).clamp(min=0)
        hidden = states[torch.arange(len(source)), last]
        mask = torch.arange(source.shape[1]) >= source_length.clamp(min=1)[:, None]
        logits = []
        for t in range(decoder_input.shape[1]):
            embedded = self.dropout(self.tgt_embedding(decoder_input[:, t]))
            context = self.attention(hidden, states, mask)
            hidden = self.cell(torch.cat([embedded, context], dim=1), hidden)
            logits.append(self.out(hidden))
        return torch.stack(logits, dim=1)


class RecipeLines(Task):
    kind = "statistic"
    metrics = {"token_loss": "minimize", "whole_entries": "maximize"}

    def fit(self, train):
        df = train.collect()
        lines = [w for line in df["line"] for w in line.lower().split()]
        entries = [w for entry in df["entry"] for w in entry.split()]
        self.fitted = {"source": sorted(set(lines)), "target": sorted(set(entries))}

    def ids(self, texts, words, length):
        index = {w: i for i, w in enumerate(words, start=4)}
        out = torch.full((len(texts), length), PAD)
        for row, text in zip(out, texts):
            found = [index.get(w, UNK) for w in text.split()][: length - 1] + [EOS]
            row[: len(found)] = torch.tensor(found)
        return out

    def encode(self, rows):
        source = self.ids([line.lower() for line in rows["line"]], self.fitted["source"], SRC)
        target = self.ids(rows["entry"].to_list(), self.fitted["target"], TGT)
        bos = torch.full((rows.height, 1), BOS)
        return {
            "source": source,
            "source_length": (source != PAD).sum(dim=1),
            "decoder_input": torch.cat([bos, target[:, :-1]], dim=1),
            LABEL: target,
            WEIGHT: (target != PAD).sum(dim=1).float(),
        }

    def build_model(self):
        return AttnSeq2Seq(len(self.fitted["source"]) + 4, len(self.fitted["target"]) + 4)

    def losses(self, output, batch):
        nll = F.cross_entropy(output.transpose(1, 2), batch[LABEL], ignore_index=PAD, reduction="none")
        return nll.sum(dim=1) / batch[WEIGHT]

    def statistic(self, output, batch):
        right = (output.argmax(-1) == batch[LABEL]) | (batch[LABEL] == PAD)
        return torch.stack([self.losses(output, batch), right.all(dim=1).float()], dim=1)

    def score(self, predictions, labels):
        loss = (predictions[:, 0] * labels).sum() / labels.sum()
        return {"token_loss": float(loss), "whole_entries": float(predictions[:, 1].mean())}

    def expected_initial_loss(self):
        return math.log(len(self.fitted["target"]) + 4)
