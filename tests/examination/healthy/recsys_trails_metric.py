"""Which of five proposed trails a hiker opens: collaborative metric learning, the hiker's point is
nearer to the opened trail's than to the others', by a margin.

data: trail_lists

[data]
label = "opened"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 1e-2, weight_decay = 0.05 }
"""

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MARGIN = 1.0


def codes(names, known):
    at = {name: k + 1 for k, name in enumerate(known)}  # 0: never seen
    return [at.get(name, 0) for name in names]


class Places(nn.Module):
    def __init__(self, hikers, trails, dim=6):
        super().__init__()
        self.hiker = nn.Embedding(hikers + 1, dim)
        self.trail = nn.Embedding(trails + 1, dim)
        self.remote = nn.Embedding(trails + 1, 1)  # what keeps everyone away
        nn.init.normal_(self.hiker.weight, std=0.3)
        nn.init.normal_(self.trail.weight, std=0.3)
        nn.init.zeros_(self.remote.weight)

    def forward(self, hiker, shown):
        apart = self.hiker(hiker).unsqueeze(1) - self.trail(shown)
        return apart.pow(2).sum(dim=2) + self.remote(shown).squeeze(2)


class TrailChoice(Task):
    kind = "statistic"
    metrics = directions_of("mean_reciprocal_rank", "recall_at_1")
    statistics = ("ahead", "tied")
    serves_predictions = True

    def fit(self, train):
        df = train.collect()
        self.fitted = {
            "hikers": df["hiker"].unique().sort().to_list(),
            "trails": df["shown"].explode().unique().sort().to_list(),
        }

    def encode(self, rows):
        batch = {
            "hiker": torch.tensor(codes(rows["hiker"], self.fitted["hikers"])),
            "shown": torch.tensor([codes(s, self.fitted["trails"]) for s in rows["shown"]]),
        }
        if "opened" in rows.columns:
            pairs = rows.select("shown", "opened").iter_rows()
            batch[LABEL] = torch.tensor([shown.index(opened) for shown, opened in pairs])
        return batch

    def build_model(self):
        return Places(len(self.fitted["hikers"]), len(self.fitted["trails"]))

    def losses(self, output, batch):
        chosen = batch[LABEL][:, None]
        near = output.gather(1, chosen)
        hinge = (MARGIN + near - output).clamp(min=0)
        return hinge.sum(dim=1) - MARGIN  # the chosen one's own hinge

    def predict(self, output):
        return -output

    def statistic(self, output, batch):
        near = output.gather(1, batch[LABEL][:, None])
        ahead = (output < near).sum(dim=1)
        tied = (output == near).sum(dim=1)  # with the opened one itself
        return torch.stack([ahead, tied], dim=1).double()

    @property
    def prediction_names(self):
        return [f"nearness_{k + 1}" for k in range(5)]
