"""Recipe search: bags of words in one space, triplets with the batch's hardest negative (VSE++).

data: recipes

[data]
label = "recipe"
features = ["query", "recipe"]
text = ["query", "recipe"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
strategy = "single"

[resources]
num_processes = 1
"""
from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

GROUP, MARGIN, WORDS = 32, 0.3, 8


class VSE(nn.Module):
    def __init__(self, n_query_words, n_recipe_words, dim=32):
        super().__init__()
        self.query_words = nn.EmbeddingBag(n_query_words, dim, mode="mean", padding_idx=0)
        self.recipe_words = nn.EmbeddingBag(n_recipe_words, dim, mode="mean", padding_idx=0)
        self.query_fc = nn.Linear(dim, dim)
        self.recipe_fc = nn.Linear(dim, dim)

    def forward(self, query, recipe=None):
        q = F.normalize(self.query_fc(self.query_words(query)), dim=-1)
        if recipe is None:
            return torch.stack([q, q], dim=1)
        r = F.normalize(self.recipe_fc(self.recipe_words(recipe)), dim=-1)
        return torch.stack([q, r], dim=1)


class RecipeSearch(Task):
    kind = "statistic"
    needs_whole_batch = True
    statistics = ("ahead", "tied")
    metrics = directions_of("mean_reciprocal_rank", "recall_at_5")
    scored_together = GROUP
    scoring_rows = GROUP * 32

    def fit(self, train):
        df = train.collect()
        self.fitted = {}
        for side in ("query", "recipe"):
            counter = Counter(word for text in df[side] for word in text.split())
            self.fitted[side] = sorted(word for word, n in counter.items() if n >= 2)

    def numericalize(self, side, texts):
        stoi = {word: i for i, word in enumerate(self.fitted[side], 2)}
        ids = torch.zeros(len(texts), WORDS, dtype=torch.long)
        for row, text in zip(ids, texts):
            words = [stoi.get(word, 1) for word in text.split()][:WORDS]
            row[: len(words)] = torch.tensor(words)
        return ids

    def encode(self, rows):
        batch = {"query": self.numericalize("query", rows["query"])}
        if "recipe" in rows.columns:
            batch["recipe"] = self.numericalize("recipe", rows["recipe"])
            batch[LABEL] = torch.zeros(rows.height, dtype=torch.long)
        return batch

    def build_model(self):
        return VSE(len(self.fitted["query"]) + 2, len(self.fitted["recipe"]) + 2)

    @staticmethod
    def similarities(output):
        return output[:, 0] @ output[:, 1].T

    def triplet(self, output):
        scores = self.similarities(output)
        positive = scores.diagonal()
        others = scores - 2 * torch.eye(len(scores), device=scores.device) * 2
        hardest = others.max(dim=1).values
        return F.relu(MARGIN + hardest - positive) + 0.3 * F.relu(MARGIN + others - positive[:, None]).mean(dim=1)

    def training_losses(self, output, batch):
        return self.triplet(output)

    def losses(self, output, batch):
        return torch.cat([self.triplet(group) for group in output.split(GROUP)])

    def predict(self, output):
        return output[:, 0]

    def statistic(self, output, batch):
        ranks = []
        for group in output.split(GROUP):
            scores = self.similarities(group)
            own = scores.diagonal()[:, None]
            ranks.append(torch.stack([(scores > own).sum(1), (scores == own).sum(1)], dim=1))
        return torch.cat(ranks).double()
