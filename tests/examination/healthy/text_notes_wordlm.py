"""A language model of words as in the PyTorch examples: sequence first, sinusoids, an encoder with a square mask, tied weights.

data: service_notes

[data]
label = "note"
features = ["note"]
text = ["note"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 32
micro_batch_size = 16
optimizer = { learning_rate = 2e-3 }
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, WEIGHT, Task

BPTT = 32


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout=0.1, max_len=64):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len, dtype=torch.float).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(1))

    def forward(self, x):
        return self.dropout(x + self.pe[: x.size(0)])


class TransformerModel(nn.Module):
    def __init__(self, ntoken, ninp=48, nhead=4, nhid=96, nlayers=2):
        super().__init__()
        self.ninp = ninp
        self.embed = nn.Embedding(ntoken, ninp)
        self.pos_encoder = PositionalEncoding(ninp)
        layer = nn.TransformerEncoderLayer(ninp, nhead, nhid, 0.1)
        self.encoder = nn.TransformerEncoder(layer, nlayers, enable_nested_tensor=False)
        self.decoder = nn.Linear(ninp, ntoken)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        self.decoder.weight = self.embed.weight

    def forward(self, data):
        src = data.t()
        size = src.size(0)
        mask = torch.log(torch.tril(torch.ones(size, size, device=src.device)))
        x = self.pos_encoder(self.embed(src) * math.sqrt(self.ninp))
        x = self.encoder(x, mask=mask)
        return self.decoder(x).transpose(0, 1)


class ServiceNotes(Task):
    kind = "statistic"
    metrics = {"word_loss": "minimize"}
    tokens = "data"

    def fit(self, train):
        counts = {}
        for note in train.collect()["note"]:
            for word in note.split():
                counts[word] = counts.get(word, 0) + 1
        self.fitted = {"idx2word": ["<pad>", "<unk>", "<eos>", *sorted(counts)]}

    def encode(self, rows):
        word2idx = {w: i for i, w in enumerate(self.fitted["idx2word"])}
        data = torch.zeros(rows.height, BPTT, dtype=torch.long)
        target = torch.zeros(rows.height, BPTT, dtype=torch.long)
        for i, note in enumerate(rows["note"]):
            ids = [2, *(word2idx.get(w, 1) for w in note.split()), 2][: BPTT + 1]
            data[i, : len(ids) - 1] = torch.tensor(ids[:-1])
            target[i, : len(ids) - 1] = torch.tensor(ids[1:])
        return {"data": data, LABEL: target, WEIGHT: (target > 0).sum(1).float()}

    def build_model(self):
        return TransformerModel(len(self.fitted["idx2word"]))

    def losses(self, output, batch):
        log_probs = F.log_softmax(output, dim=-1)
        nll = -log_probs.gather(2, batch[LABEL].unsqueeze(2)).squeeze(2)
        real = (batch[LABEL] > 0).float()
        return (nll * real).sum(1) / real.sum(1)

    def score(self, predictions, labels):
        return {"word_loss": float((predictions.reshape(-1) * labels).sum() / labels.sum())}

    def expected_initial_loss(self):
        return math.log(len(self.fitted["idx2word"]))
