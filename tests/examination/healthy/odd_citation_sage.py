"""Fields of papers (GraphSAGE on Cora, in small): own words, the masked mean over cited papers' words, known fields.

data: citations

[data]
label = "field"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 3e-3, weight_decay = 0.05 }
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

NUM_WORDS, MAX_NEIGHBORS = 24, 6


class SAGE(nn.Module):
    def __init__(self, num_classes, hidden=48):
        super().__init__()
        self.lin_self = nn.Linear(NUM_WORDS, hidden)
        self.lin_neigh = nn.Linear(NUM_WORDS, hidden, bias=False)
        self.lin_fields = nn.Linear(num_classes, hidden, bias=False)
        self.lin_out = nn.Linear(hidden, num_classes)

    def forward(self, x, neigh_x, neigh_mask, neigh_y):
        # neigh_x: [N, K, F], neigh_mask: [N, K]
        m = neigh_mask.unsqueeze(-1)
        agg = (neigh_x * m).sum(dim=1) / m.sum(dim=1).clamp(min=1)
        h = self.lin_self(x) + self.lin_neigh(agg) + self.lin_fields(neigh_y)
        h = F.dropout(F.relu(h), p=0.3, training=self.training)
        return self.lin_out(h)


class Citations(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "macro_f1", "log_loss")

    def fit(self, train):
        self.fitted = {"fields": sorted(train.select("field").unique().collect().to_series().to_list())}

    def encode(self, rows):
        n = rows.height
        neigh_x = np.zeros((n, MAX_NEIGHBORS, NUM_WORDS), dtype=np.float32)
        neigh_mask = np.zeros((n, MAX_NEIGHBORS), dtype=np.float32)
        for i, flat in enumerate(rows["cited_words"].to_list()):
            bags = np.reshape(flat, (-1, NUM_WORDS))[:MAX_NEIGHBORS]
            neigh_x[i, : len(bags)] = bags
            neigh_mask[i, : len(bags)] = 1
        batch = {
            "x": torch.tensor(rows["words"].to_list(), dtype=torch.float32),
            "neigh_x": torch.from_numpy(neigh_x),
            "neigh_mask": torch.from_numpy(neigh_mask),
            "neigh_y": torch.tensor(rows["cited_fields"].to_list(), dtype=torch.float32),
        }
        if "field" in rows.columns:
            y = {field: k for k, field in enumerate(self.fitted["fields"])}
            batch[LABEL] = torch.tensor([y[field] for field in rows["field"]])
        return batch

    def build_model(self):
        return SAGE(len(self.fitted["fields"]))

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")
