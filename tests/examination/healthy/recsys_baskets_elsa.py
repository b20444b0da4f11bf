"""What a customer buys next: ELSA, shallow and linear from item to item, with a diagonal of zeros.

data: garden_baskets

[data]
label = "bought_next"
group = "customer"
features = ["bought_before", "channel"]
ids = ["row_id"]
meta = ["bought_on"]

[training]
steps = 400
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 1e-2, weight_decay = 0.0 }
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from perennial.contracts.section import Section
from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CHANNELS = {"till": 0, "app": 1, "web": 2}


class ELSA(nn.Module):
    def __init__(self, log_popularity: Tensor, rank: int) -> None:
        super().__init__()
        n_items = len(log_popularity)
        self.A = nn.Parameter(nn.init.xavier_uniform_(torch.empty(n_items, rank)))
        self.popularity = nn.Parameter(log_popularity)
        self.by_channel = nn.Embedding(len(CHANNELS), n_items)
        self.log_temperature = nn.Parameter(torch.tensor(0.5))
        nn.init.zeros_(self.by_channel.weight)

    def forward(self, recent: Tensor, bought: Tensor, channel: Tensor) -> Tensor:
        A = F.normalize(self.A, dim=1)  # so that each item's likeness to itself is 1 ...
        likeness = recent @ A @ A.T - recent  # ... and A A' - I has no diagonal
        bias = self.popularity + self.by_channel(channel)
        logits = likeness * self.log_temperature.exp() + bias
        next_one = logits.masked_fill(bought, float("-inf"))  # nobody buys a second spade
        return torch.stack([next_one, logits], dim=1)


class GardenBaskets(Task):
    class Options(Section):
        num_items: int = 140
        rank: int = 12

    kind = "multiclass"
    metrics = directions_of("log_loss", "top_10_accuracy", "accuracy")
    half_life = 4

    def fit(self, train):
        df = train.select("bought_before", "bought_next").collect()
        counts = np.bincount(df["bought_next"], minlength=self.options.num_items) + 1.0
        self.fitted = {"log_popularity": np.log(counts / counts.sum()).tolist()}

    def encode(self, rows):
        n = self.options.num_items
        recent = np.zeros((len(rows), n), dtype=np.float32)
        for line, items in zip(recent, rows["bought_before"].to_list()):
            age = np.arange(len(items))[::-1]
            line[items] = 0.5 ** (age / self.half_life)
        bought = recent > 0
        recent /= np.linalg.norm(recent, axis=1, keepdims=True) + 1e-8
        batch = {
            "recent": torch.from_numpy(recent),
            "bought": torch.from_numpy(bought),
            "channel": torch.tensor([CHANNELS[c] for c in rows["channel"]]),
        }
        if "bought_next" in rows.columns:
            batch[LABEL] = torch.tensor(rows["bought_next"].to_list())
        return batch

    def build_model(self):
        return ELSA(torch.tensor(self.fitted["log_popularity"]), self.options.rank)

    def losses(self, output, batch):
        return F.cross_entropy(output[:, 0], batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        """Each item of the basket is also told by the others, for the diagonal is zero."""
        basket = batch["recent"] / batch["recent"].sum(1, keepdim=True)
        others = F.cross_entropy(output[:, 1], basket, reduction="none")
        return self.losses(output, batch) + 2 * others

    def predict(self, output):
        return output[:, 0].softmax(dim=1)
