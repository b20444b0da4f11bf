"""Churn in the style of Keras' structured-data tutorial: lookups to embeddings, normalised numbers, Yes or No.

data: telco

[data]
label = "Churn"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 128
optimizer = { name = "adam", learning_rate = 2e-3 }
"""
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

NUMERIC = ["tenure", "MonthlyCharges", "TotalCharges"]
CATEGORIES = ["Contract", "InternetService", "PaymentMethod"]


class StringLookup:
    """0 is for what is missing, 1 for what is new."""

    def __init__(self, vocabulary):
        self.table = {value: i + 2 for i, value in enumerate(vocabulary)}

    def __call__(self, values):
        return [0 if v is None else self.table.get(v, 1) for v in values]


class ChurnModel(nn.Module):
    def __init__(self, sizes, n_numeric):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, 4) for size in sizes)
        self.dense_1 = nn.Linear(4 * len(sizes) + n_numeric, 48)
        self.dense_2 = nn.Linear(48, 24)
        self.dropout = nn.Dropout(0.3)
        self.out = nn.Linear(24, 2)

    def forward(self, numeric, categories):
        embedded = [table(categories[:, i]) for i, table in enumerate(self.embeddings)]
        x = torch.cat([numeric, *embedded], dim=1)
        x = self.dropout(torch.relu(self.dense_1(x)))
        return self.out(torch.relu(self.dense_2(x)))


class Churn(Task):
    kind = "multiclass"

    def fit(self, train):
        df = train.collect()
        self.fitted = {
            "vocabulary": {c: sorted(df[c].drop_nulls().unique()) for c in CATEGORIES},
            "mean": {c: float(df[c].to_numpy()[df[c].is_not_null().to_numpy()].mean()) for c in NUMERIC},
            "std": {c: float(df[c].to_numpy()[df[c].is_not_null().to_numpy()].std()) for c in NUMERIC},
        }

    def encode(self, rows):
        mean, std = self.fitted["mean"], self.fitted["std"]
        numeric = [(rows[c].cast(float).fill_null(mean[c]) - mean[c]) / std[c] for c in NUMERIC]
        categories = [StringLookup(self.fitted["vocabulary"][c])(rows[c]) for c in CATEGORIES]
        batch = {
            "numeric": torch.tensor([c.to_list() for c in numeric], dtype=torch.float32).T.contiguous(),
            "categories": torch.tensor(categories).T.contiguous(),
        }
        if "Churn" in rows.columns:
            batch[LABEL] = torch.tensor([int(v == "Yes") for v in rows["Churn"]])
        return batch

    def build_model(self):
        sizes = [len(self.fitted["vocabulary"][c]) + 2 for c in CATEGORIES]
        return ChurnModel(sizes, len(NUMERIC))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")
