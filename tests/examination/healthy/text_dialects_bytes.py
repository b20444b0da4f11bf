"""Five dialects by their bytes: a small causal-free ByteNet with weight normalisation (parametrizations), max over time.

data: dialects

[data]
label = "dialect"
text = ["sentence"]
ids = ["row_id"]

[training]
steps = 150
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 2e-3 }
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm

from perennial.engine.task import LABEL, Task

MAX_BYTES = 64


class ByteNet(nn.Module):
    def __init__(self, n_classes, dim=32, dilations=(1, 2, 4)):
        super().__init__()
        self.embed = nn.Embedding(256, dim)  # 0 is padding, and no byte of a text
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv1d(dim, dim, 3, dilation=d, padding=d)) for d in dilations
        )
        self.head = weight_norm(nn.Linear(dim, n_classes))

    def forward(self, raw):
        raw = raw.long()
        keep = (raw != 0).unsqueeze(1)
        x = self.embed(raw).transpose(1, 2) * keep
        for conv in self.convs:
            x = (x + F.relu(conv(x))) * keep
        x = x.masked_fill(~keep, float("-inf")).amax(dim=2)
        return self.head(x)


class Dialects(Task):
    kind = "multiclass"

    def fit(self, train):
        self.fitted = {"names": train.select("dialect").unique().collect()["dialect"].sort().to_list()}

    def encode(self, rows):
        raw = torch.zeros(rows.height, MAX_BYTES, dtype=torch.uint8)
        for i, s in enumerate(rows["sentence"]):
            b = s.lower().encode("utf-8")[:MAX_BYTES]
            raw[i, : len(b)] = torch.frombuffer(bytearray(b), dtype=torch.uint8)
        batch = {"raw": raw}
        if "dialect" in rows.columns:
            code = {name: i for i, name in enumerate(self.fitted["names"])}
            batch[LABEL] = torch.tensor([code[d] for d in rows["dialect"]])
        return batch

    def build_model(self):
        return ByteNet(len(self.fitted["names"]))

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")
