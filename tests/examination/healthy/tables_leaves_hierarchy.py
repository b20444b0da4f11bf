"""Species of leaves in two steps: first the genus, then the species within it.

data: leaves

[data]
label = "species"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 5e-3 }
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class HierarchicalSoftmax(nn.Module):
    """log p(species) = log p(genus) + log p(species | genus)."""

    def __init__(self, d, genus_of):
        super().__init__()
        n_genera = max(genus_of) + 1
        self.body = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU())
        self.genus = nn.Linear(64, n_genera)
        self.species = nn.Linear(64, len(genus_of))
        self.register_buffer("genus_of", torch.tensor(genus_of))
        self.register_buffer("inside", self.genus_of[None, :] == torch.arange(n_genera)[:, None])

    def forward(self, measures):
        h = self.body(measures)
        genus, species = self.genus(h).log_softmax(1), self.species(h)
        within = species[:, None, :].masked_fill(~self.inside, -1e9)  # B, genera, species
        norm = within.logsumexp(2)
        return genus[:, self.genus_of] + species - norm[:, self.genus_of]


class Herbarium(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "top_3_accuracy", "macro_f1", "log_loss")

    def fit(self, train):
        df = train.collect()
        self.measures = sorted(self.columns.features)
        self.species = sorted(df["species"].unique())
        x = df.select(self.measures).to_torch().float().log()
        self.mu, self.sd = x.mean(0).tolist(), x.std(0).tolist()

    def state(self):
        return {"measures": self.measures, "species": self.species, "mu": self.mu, "sd": self.sd}

    def load_state(self, s):
        self.measures, self.species, self.mu, self.sd = s["measures"], s["species"], s["mu"], s["sd"]

    @property
    def genus_of(self):
        genera = sorted({name.split()[0] for name in self.species})
        return [genera.index(name.split()[0]) for name in self.species]

    def encode(self, rows):
        x = rows.select(self.measures).to_torch().float().log()
        batch = {"measures": (x - torch.tensor(self.mu)) / torch.tensor(self.sd)}
        if "species" in rows.columns:
            batch[LABEL] = torch.tensor([self.species.index(name) for name in rows["species"]])
        return batch

    def build_model(self):
        return HierarchicalSoftmax(len(self.measures), self.genus_of)

    def losses(self, output, batch):
        return F.nll_loss(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.exp()

    @property
    def prediction_names(self):
        return self.species
