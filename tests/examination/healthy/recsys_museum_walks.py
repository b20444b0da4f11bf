"""The next exhibit of a walk through a museum: BPR with drawn negatives, as a Lightning module.

data: museum_walks

[data]
label = "next_exhibit"
time = "at"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 1e-2, weight_decay = 0.02 }
schedule = { shape = "cosine" }
"""

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

HISTORY = 8
NEGATIVES = 16


class WalkModel(nn.Module):
    """Scores of all exhibits: those heard, the last of them and the party make the query."""

    def __init__(self, n_exhibits, n_parties, n_languages, dim=24):
        super().__init__()
        self.exhibits = nn.Embedding(n_exhibits + 1, dim, padding_idx=0)
        self.party = nn.Embedding(n_parties + 1, 6)
        self.language = nn.Embedding(n_languages + 1, 3)
        self.query = nn.Sequential(
            nn.Linear(2 * dim + 9, 48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, dim)
        )
        self.popularity = nn.Parameter(torch.zeros(n_exhibits))
        nn.init.normal_(self.exhibits.weight, std=0.3)
        with torch.no_grad():
            self.exhibits.weight[0] = 0

    def forward(self, heard, party, language, negatives=None):
        vectors = self.exhibits(heard)
        count = (heard > 0).sum(1, keepdim=True).clamp(min=1)
        mean, last = vectors.sum(1) / count, vectors[:, -1]
        who = [self.party(party), self.language(language)]
        query = self.query(torch.cat([mean, last, *who], dim=1))
        return query @ self.exhibits.weight[1:].T + self.popularity


class MuseumWalks(Task):
    kind = "statistic"
    statistics = ("ahead", "tied")
    metrics = directions_of("mean_reciprocal_rank", "recall_at_5")
    serves_predictions = True

    def fit(self, train):
        df = train.collect()
        heard = set(df["heard"].explode()) | set(df["next_exhibit"])
        self.fitted = {
            "exhibits": sorted(heard),
            "parties": sorted(df["visitors"].unique()),
            "languages": sorted(df["guide_language"].unique()),
        }

    def encode(self, rows):
        number = {name: k for k, name in enumerate(self.fitted["exhibits"], start=1)}
        heard = torch.zeros(rows.height, HISTORY, dtype=torch.long)
        for i, walk in enumerate(rows["heard"]):
            ids = [number.get(name, 0) for name in walk][-HISTORY:]
            heard[i, HISTORY - len(ids) :] = torch.tensor(ids)  # padded on the left
        lookup = lambda known, values: torch.tensor(
            [known.index(v) + 1 if v in known else 0 for v in values]
        )
        batch = {
            "heard": heard,
            "party": lookup(self.fitted["parties"], rows["visitors"]),
            "language": lookup(self.fitted["languages"], rows["guide_language"]),
        }
        if "next_exhibit" in rows.columns:
            batch[LABEL] = torch.tensor([number.get(v, 1) - 1 for v in rows["next_exhibit"]])
        return batch

    def augment(self, batch, generator):
        """Draw negatives: any exhibits, each as likely."""
        count = len(self.fitted["exhibits"])
        shape = (len(batch[LABEL]), NEGATIVES)
        negatives = torch.randint(0, count, shape, generator=generator)
        return {**batch, "negatives": negatives}

    def build_model(self):
        sizes = [len(self.fitted[k]) for k in ("exhibits", "parties", "languages")]
        return WalkModel(*sizes)

    def training_losses(self, output, batch):
        if "negatives" not in batch:
            return self.losses(output, batch)
        positive = output.gather(1, batch[LABEL][:, None])
        negative = output.gather(1, batch["negatives"])
        own = batch["negatives"] == batch[LABEL][:, None]
        loss = -F.logsigmoid(positive - negative).masked_fill(own, 0)
        return loss.sum(1) / (~own).sum(1).clamp(min=1)

    def losses(self, output, batch):
        """Over all exhibits: each pair of the right one with another."""
        positive = output.gather(1, batch[LABEL][:, None])
        pairs = -F.logsigmoid(positive - output)
        own = F.one_hot(batch[LABEL], output.shape[1]).bool()
        return pairs.masked_fill(own, 0).sum(1) / (output.shape[1] - 1)

    def statistic(self, output, batch):
        own = output.gather(1, batch[LABEL][:, None])
        return torch.stack([(output > own).sum(1), (output == own).sum(1)], dim=1).double()
