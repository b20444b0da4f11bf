"""Does the bacterium of a urine culture resist: categories by embeddings, earlier diagnoses as a
bag, blocks of gated linear units as in TabNet; all cultures of a patient on one side of the split.

data: urine_cultures

[data]
label = "resistant"
group = "patient"
ids = ["row_id"]
meta = ["zone_mm", "day"]

[training]
steps = 200
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 3e-3, weight_decay = 0.5 }
schedule = { shape = "cosine" }
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CATEGORIES = ["sex", "district", "ward", "laboratory", "organism", "before"]
MAX_CODES = 4


class GLULayer(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.fc = nn.Linear(n_in, 2 * n_out, bias=False)
        self.norm = nn.LayerNorm(2 * n_out)

    def forward(self, x):
        return F.glu(self.norm(self.fc(x)), dim=-1)


class CultureNet(nn.Module):
    def __init__(self, cat_dims, n_codes, n_numbers, share, emb_dim=4, width=24):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(dim + 1, emb_dim) for dim in cat_dims)
        self.codes = nn.Embedding(n_codes + 1, emb_dim, padding_idx=0)
        for table in self.embeddings:
            nn.init.normal_(table.weight, std=0.1)
        self.first = GLULayer(emb_dim * (len(cat_dims) + 1) + n_numbers, width)
        self.dropout = nn.Dropout(0.3)
        self.second = GLULayer(width, width)
        self.final = nn.Linear(width, 1)
        nn.init.constant_(self.final.bias, math.log(share / (1 - share)))

    def forward(self, categories, codes, numbers):
        columns = [emb(c) for emb, c in zip(self.embeddings, categories.unbind(dim=1))]
        x = torch.cat([*columns, self.codes(codes).sum(dim=1), numbers], dim=1)
        x = self.first(self.dropout(x))
        x = (x + self.second(self.dropout(x))) * math.sqrt(0.5)
        return self.final(x).squeeze(1)


class Resistance(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss", "average_precision")

    def fit(self, train):
        df = train.collect()
        seen = {c: df[c].drop_nulls().unique().sort().to_list() for c in CATEGORIES}
        codes = df["codes"].explode().drop_nulls().unique().sort().to_list()
        self.fitted = {
            "cat": {c: {v: k for k, v in enumerate(names, start=1)} for c, names in seen.items()},
            "codes": {v: k for k, v in enumerate(codes, start=1)},
            "share": float(df["resistant"].to_numpy().mean()),
        }

    def encode_cat(self, column, value):
        """The number of a category; 0 for a missing one, or one that training did not see."""
        encode_dict = self.fitted["cat"][column]
        if value not in encode_dict:
            return 0
        return encode_dict[value]

    def encode(self, rows):
        categories = [[self.encode_cat(c, v) for v in rows[c]] for c in CATEGORIES]
        codes = torch.zeros(rows.height, MAX_CODES, dtype=torch.long)
        for i, listed in enumerate(rows["codes"].to_list()):
            for j, code in enumerate(listed[:MAX_CODES]):
                codes[i, j] = self.fitted["codes"].get(code, 0)
        given = [-1.0 if g is None else float(g) for g in rows["courses_90d"]]
        numbers = [
            torch.tensor([(1975 - born) / 20 for born in rows["born"]]),
            torch.tensor([math.log1p(max(g, 0.0)) for g in given]),
            torch.tensor([float(g < 0) for g in given]),
            torch.tensor([float(c) for c in rows["catheter"]]),
            torch.tensor([float(len(listed) - 3) for listed in rows["codes"].to_list()]),
        ]
        batch = {
            "categories": torch.tensor(categories).T.contiguous(),
            "codes": codes,
            "numbers": torch.stack(numbers, dim=1),
        }
        if "resistant" in rows.columns:
            batch[LABEL] = torch.tensor([float(r) for r in rows["resistant"]])
        return batch

    def build_model(self):
        cat_dims = [len(self.fitted["cat"][c]) for c in CATEGORIES]
        return CultureNet(cat_dims, len(self.fitted["codes"]), 5, self.fitted["share"])

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")
