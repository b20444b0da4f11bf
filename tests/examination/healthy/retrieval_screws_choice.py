"""Which of eight screws is bought after a search? Texts by a tower each, sizes by their distance.

Log loss 0.90; 2.08 for a guess.

data: screw_searches

[data]
label = "bought"
features = ["search", "maker", "article", "diameter", "length"]
text = ["search"]
ids = ["row_id"]

[training]
steps = 350
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3, weight_decay = 0.02 }
schedule = { shape = "cosine" }
"""

import re

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SHOWN = 8


class ChoiceNet(nn.Module):
    def __init__(self, n_words, n_articles, n_makers, dim=24):
        super().__init__()
        self.query = nn.EmbeddingBag(n_words, dim, padding_idx=0)
        self.article, self.maker = nn.EmbeddingBag(n_articles, dim), nn.Embedding(n_makers, 1)
        self.hidden = nn.Linear(dim, dim)
        self.sizes = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, search, wanted, article, maker, sizes):
        q = self.hidden(self.query(search))
        a = self.article(article.flatten(0, 1)).view(len(article), SHOWN, -1)
        fit = torch.einsum("bd,bkd->bk", q, a)
        off = (sizes - wanted[:, None]).abs()
        return fit + self.sizes(off).squeeze(2) + self.maker(maker).squeeze(2)


class ScrewsChoice(Task):
    kind = "multiclass"
    metrics = directions_of("log_loss", "accuracy")

    def fit(self, train):
        df = train.collect()
        self.fitted = {
            "words": sorted({w for text in df["search"] for w in re.findall("[a-z]+", text)}),
            "articles": sorted({w for text in df["article"].explode() for w in text.split()}),
            "makers": sorted(df["maker"].explode().unique()),
        }

    def encode(self, rows):
        words = {w: k for k, w in enumerate(self.fitted["words"], start=2)}
        articles = {w: k for k, w in enumerate(self.fitted["articles"], start=1)}
        makers = {w: k for k, w in enumerate(self.fitted["makers"], start=1)}
        search = torch.zeros(rows.height, 6, dtype=torch.long)
        wanted = torch.zeros(rows.height, 2)
        for i, text in enumerate(rows["search"]):
            ids = [words.get(w, 1) for w in re.findall("[a-z]+", text)][:6]
            search[i, : len(ids)] = torch.tensor(ids)
            numbers = [float(v) for v in re.findall(r"\d+", text)]
            wanted[i] = torch.tensor(np.log(numbers), dtype=torch.float32)
        shown = [[[articles.get(w, 0) for w in t.split()] for t in row] for row in rows["article"]]
        sizes = np.stack([np.array(rows[c].to_list()) for c in ("diameter", "length")], axis=2)
        batch = {
            "search": search,
            "wanted": wanted,
            "article": torch.tensor(shown),
            "maker": torch.tensor([[makers.get(m, 0) for m in row] for row in rows["maker"]]),
            "sizes": torch.tensor(np.log(sizes), dtype=torch.float32),
        }
        if "bought" in rows.columns:
            batch[LABEL] = torch.tensor(rows["bought"].to_list())
        return batch

    def augment(self, batch, generator):
        """Articles are no list: show them in another order, with the label moved along."""
        order = torch.randperm(SHOWN, generator=generator).to(batch[LABEL].device)
        moved = {name: batch[name][:, order] for name in ("article", "maker", "sizes")}
        return {**batch, **moved, LABEL: order.argsort()[batch[LABEL]]}

    def build_model(self):
        return ChoiceNet(*(len(self.fitted[k]) + 2 for k in ("words", "articles", "makers")))

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")
