"""Tags of a question's title: a small transformer, a mean over its words, six sigmoids.

data: questions

[data]
label = "tags"
features = ["title"]
text = ["title"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3, weight_decay = 0.05 }
"""
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

LENGTH = 20


class Tagger(nn.Module):
    def __init__(self, vocab, dim=32, tags=6):
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim, padding_idx=0)
        self.positions = nn.Embedding(LENGTH, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(dim, tags)

    def forward(self, input_ids):
        mask = input_ids != 0
        x = self.tokens(input_ids) + 0.1 * self.positions(torch.arange(LENGTH, device=input_ids.device))
        x = self.encoder(x, src_key_padding_mask=~mask)
        weights = mask.unsqueeze(-1).float()
        pooled = (x * weights).sum(1) / weights.sum(1).clamp(min=1)
        return self.head(pooled)


class StackTags(Task):
    kind = "statistic"
    statistics = ("hits", "labelled", "predicted")
    metrics = directions_of("micro_f1")

    def fit(self, train):
        words = {w for title in train.select("title").collect()["title"] for w in title.split()}
        self.fitted = {"words": sorted(words)}

    def encode(self, rows):
        index = {w: i + 2 for i, w in enumerate(self.fitted["words"])}
        ids = [[index.get(w, 1) for w in title.split()][:LENGTH] for title in rows["title"]]
        batch = {"input_ids": torch.tensor([i + [0] * (LENGTH - len(i)) for i in ids])}
        if "tags" in rows.columns:
            batch[LABEL] = torch.tensor(rows["tags"].to_list()).float()
        return batch

    def build_model(self):
        return Tagger(len(self.fitted["words"]) + 2)

    def losses(self, output, batch):
        bce = nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")
        return bce.sum(1)

    def predict(self, output):
        return torch.sigmoid(output)

    def statistic(self, output, batch):
        guess, truth = (output > 0).double(), batch[LABEL].double()
        return torch.stack([(guess * truth).sum(1), truth.sum(1), guess.sum(1)], 1)
