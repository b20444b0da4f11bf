"""FPMC: what a household buys next, from its own habits and from each article of its last basket.

data: baskets

[data]
label = "first"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 1e-2, weight_decay = 0.9 }
"""
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class FPMC(nn.Module):
    """score(i | u, B) = V_UI[u] . V_IU[i] + mean over l in B of V_LI[l] . V_IL[i]"""

    def __init__(self, n_users, n_items, k=12):
        super().__init__()
        self.VUI, self.VIU = nn.Embedding(n_users, k), nn.Linear(k, n_items, bias=False)
        self.VLI, self.VIL = nn.Embedding(n_items, k, padding_idx=0), nn.Linear(k, n_items, bias=False)
        self.popular = nn.Parameter(torch.zeros(n_items))
        for table in (self.VUI, self.VIU, self.VLI, self.VIL):
            nn.init.normal_(table.weight, std=0.2)

    def forward(self, household, basket):
        there = (basket > 0).unsqueeze(-1).float()
        mean = (self.VLI(basket) * there).sum(1) / there.sum(1).clamp(min=1)
        return self.VIU(self.VUI(household)) + self.VIL(mean) + self.popular


class NextBasket(Task):
    kind = "multiclass"
    metrics = directions_of("top_5_accuracy", "log_loss", "accuracy")
    longest = 10

    def fit(self, train):
        df = train.collect()
        goods = set(df["first"]) | set(df["last_basket"].explode())
        self.fitted = {"households": sorted(set(df["household"])), "goods": ["<pad>", *sorted(goods)]}

    def encode(self, rows):
        item = {name: k for k, name in enumerate(self.fitted["goods"])}
        user = {name: k + 1 for k, name in enumerate(self.fitted["households"])}
        known = [[item[g] for g in basket if g in item][: self.longest] for basket in rows["last_basket"]]
        padded = torch.tensor([codes + [0] * (self.longest - len(codes)) for codes in known])
        batch = {"household": torch.tensor([user.get(h, 0) for h in rows["household"]]), "basket": padded}
        if "first" in rows.columns:
            batch[LABEL] = torch.tensor([item.get(g, 0) for g in rows["first"]])
        return batch

    def build_model(self):
        return FPMC(len(self.fitted["households"]) + 1, len(self.fitted["goods"]))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.softmax(-1)
