"""Link prediction on a knowledge graph: ComplEx, all tails scored at once, a nuclear penalty while training, MRR.

data: graph_facts

[data]
label = "tail"
features = ["head", "relation"]
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 256
micro_batch_size = 256
optimizer = { learning_rate = 1e-2, weight_decay = 0.0 }
"""
import math

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

RANK = 16
N3 = 0.05


class ComplEx(nn.Module):
    """Re<h, r, conj(t)>; real parts first, imaginary ones after."""

    def __init__(self, n_entities, n_relations, rank=RANK, init=1e-1):
        super().__init__()
        self.entity = nn.Embedding(n_entities, 2 * rank)
        self.relation = nn.Embedding(n_relations, 2 * rank)
        self.tail_bias = nn.Parameter(torch.zeros(n_entities))
        nn.init.normal_(self.entity.weight, std=init)
        nn.init.normal_(self.relation.weight, std=init)

    def forward(self, head, relation):
        h_re, h_im = self.entity(head).chunk(2, -1)
        r_re, r_im = self.relation(relation).chunk(2, -1)
        t_re, t_im = self.entity.weight.chunk(2, -1)
        q_re, q_im = h_re * r_re - h_im * r_im, h_re * r_im + h_im * r_re
        scores = q_re @ t_re.T + q_im @ t_im.T + self.tail_bias
        # the penalty needs the factors: their cubed sizes go along as a last column
        cubes = (h_re**2 + h_im**2).pow(1.5).sum(-1) + (r_re**2 + r_im**2).pow(1.5).sum(-1)
        return torch.cat([scores, cubes.unsqueeze(-1)], -1)


class LinkPrediction(Task):
    kind = "statistic"
    serves_predictions = True
    statistics = ("ahead", "tied")
    metrics = directions_of("mean_reciprocal_rank", "recall_at_10", "recall_at_3")

    def fit(self, train):
        df = train.collect()
        self.fitted = {
            "entities": sorted({*df["head"], *df["tail"]}),
            "relations": sorted(set(df["relation"])),
        }

    def encode(self, rows):
        e = {name: k for k, name in enumerate(self.fitted["entities"])}
        r = {name: k for k, name in enumerate(self.fitted["relations"])}
        batch = {
            "head": torch.tensor([e.get(x, 0) for x in rows["head"]]),
            "relation": torch.tensor([r[x] for x in rows["relation"]]),
        }
        if "tail" in rows.columns:
            batch[LABEL] = torch.tensor([e.get(x, 0) for x in rows["tail"]])
        return batch

    def build_model(self):
        return ComplEx(len(self.fitted["entities"]), len(self.fitted["relations"]))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output[:, :-1], batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        return self.losses(output, batch) + N3 * output[:, -1]

    def predict(self, output):
        return output[:, :-1].softmax(-1)

    def statistic(self, output, batch):
        scores = output[:, :-1]
        own = scores.gather(1, batch[LABEL][:, None])
        return torch.stack([(scores > own).sum(1), (scores == own).sum(1)], 1).double()

    def expected_initial_loss(self):
        return math.log(len(self.fitted["entities"]))
