"""Does a listener play a podcast that is offered? Two towers with ids and attributes, a dot product, negatives of chance.

data: podcast_offers

[data]
label = "played"
time = "offered_at"
ids = ["row_id"]

[training]
steps = 800
global_batch_size = 256
micro_batch_size = 256
optimizer = { learning_rate = 3e-3, weight_decay = 0.3 }
"""
import torch
from torch import nn
from torch.nn import functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

USER = {"listener": 8, "country": 4}
ITEM = {"show": 8, "category": 4, "publisher": 4}


class Tower(nn.Module):
    def __init__(self, sizes, dims, dense, out=16):
        super().__init__()
        self.tables = nn.ModuleList()
        for size, dim in zip(sizes, dims):
            self.tables.append(nn.Embedding.from_pretrained(torch.randn(size, dim) * 0.1, freeze=False))
        self.mlp = nn.Sequential(nn.Linear(sum(dims) + dense, 32), nn.ReLU(), nn.Linear(32, out))

    def forward(self, codes, numbers):
        found = [table(code) for table, code in zip(self.tables, codes.unbind(1))]
        return self.mlp(torch.cat([*found, numbers], dim=1))


class TwoTowers(nn.Module):
    def __init__(self, user_sizes, item_sizes):
        super().__init__()
        self.user = Tower(user_sizes, USER.values(), 2)
        self.item = Tower(item_sizes, ITEM.values(), 1)
        self.item_bias = nn.Embedding(item_sizes[0], 1)
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.bias = nn.Parameter(torch.tensor(-0.7))
        nn.init.zeros_(self.item_bias.weight)

    def forward(self, user_codes, user_numbers, item_codes, item_numbers):
        u = F.normalize(self.user(user_codes, user_numbers), dim=1)
        v = F.normalize(self.item(item_codes, item_numbers), dim=1)
        return self.scale * (u * v).sum(dim=1) + self.item_bias(item_codes[:, 0]).squeeze(1) + self.bias


class PodcastPlays(Task):
    kind = "binary"

    def fit(self, train):
        df = train.collect()
        minutes = df["minutes"].log()
        self.fitted = {
            "vocabulary": {name: df[name].unique().sort().to_list() for name in [*USER, *ITEM]},
            "age": [df["age"].mean(), df["age"].std()],
            "minutes": [minutes.mean(), minutes.std()],
        }

    def codes(self, rows, names):
        out = torch.zeros(rows.height, len(names), dtype=torch.long)
        for i, name in enumerate(names):
            index = {v: k for k, v in enumerate(self.fitted["vocabulary"][name], start=1)}
            out[:, i] = torch.tensor([index.get(v, 0) for v in rows[name].to_list()])
        return out

    def encode(self, rows):
        mean, std = self.fitted["age"]
        age = ((rows["age"].cast(float) - mean) / std).fill_null(0.0)
        mean, std = self.fitted["minutes"]
        minutes = (rows["minutes"].log() - mean) / std
        batch = {
            "user_codes": self.codes(rows, list(USER)),
            "user_numbers": torch.tensor([age.to_list(), rows["age"].is_null().to_list()], dtype=torch.float32).T,
            "item_codes": self.codes(rows, list(ITEM)),
            "item_numbers": torch.tensor(minutes.to_list(), dtype=torch.float32)[:, None],
        }
        if "played" in rows.columns:
            batch[LABEL] = torch.tensor(rows["played"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        size = {name: len(words) + 1 for name, words in self.fitted["vocabulary"].items()}
        return TwoTowers([size[n] for n in USER], [size[n] for n in ITEM])

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")
