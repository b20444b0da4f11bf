"""nn.TransformerEncoder with src_key_padding_mask, sine positions, masked mean.

data: reviews

[data]
label = "sentiment"
features = ["review"]
text = ["review"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 1e-3 }
"""
import math

import torch
from torch import Tensor, nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class PositionalEncoding(nn.Module):
    def __init__(self, d_model: int, max_len: int = 64):
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, d_model)
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pe[: x.size(1)]


class TransformerModel(nn.Module):
    def __init__(self, ntoken: int, d_model: int = 32, nhead: int = 4, d_hid: int = 64, nlayers: int = 2):
        super().__init__()
        self.d_model = d_model
        self.pos_encoder = PositionalEncoding(d_model)
        layer = nn.TransformerEncoderLayer(d_model, nhead, d_hid, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, nlayers, enable_nested_tensor=False)
        self.embedding = nn.Embedding(ntoken, d_model)
        self.linear = nn.Linear(d_model, 1)
        self.init_weights()

    def init_weights(self) -> None:
        self.embedding.weight.data.uniform_(-0.1, 0.1)
        self.linear.bias.data.zero_()
        self.linear.weight.data.uniform_(-0.1, 0.1)

    def forward(self, src: Tensor) -> Tensor:
        padding = src == 0
        x = self.pos_encoder(self.embedding(src) * math.sqrt(self.d_model))
        x = self.encoder(x, src_key_padding_mask=padding)
        x = x.masked_fill(padding[..., None], 0).sum(1) / (~padding).sum(1, keepdim=True)
        return self.linear(x).squeeze(-1)


class ReviewTransformer(Task):
    kind = "binary"
    metrics = directions_of("accuracy", "roc_auc", "log_loss")

    def fit(self, train):
        vocab = set()
        for text in train.select("review").collect()["review"]:
            vocab.update(text.split())
        self.vocab = sorted(vocab)

    def state(self):
        return {"vocab": self.vocab}

    def load_state(self, state):
        self.vocab = state["vocab"]

    def encode(self, rows):
        ids = {word: number for number, word in enumerate(self.vocab, start=3)}
        src = torch.zeros(len(rows), 50, dtype=torch.long)
        for i, text in enumerate(rows["review"]):
            line = [2] + [ids.get(w, 1) for w in text.split()]
            src[i, : min(50, len(line))] = torch.tensor(line[:50])
        out = {"src": src}
        if "sentiment" in rows.columns:
            out[LABEL] = torch.tensor(rows["sentiment"].to_list(), dtype=torch.float)
        return out

    def build_model(self):
        return TransformerModel(len(self.vocab) + 3)

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return torch.sigmoid(output)

    def expected_initial_loss(self):
        return math.log(2)
