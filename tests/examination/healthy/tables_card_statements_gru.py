"""Default of a card from up to thirteen monthly statements: a GRU over ratios to the limit, its
state at the last month, a small head.

data: card_statements

[data]
label = "default"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 3e-3 }
"""

import torch
import torch.nn as nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MONTHS = 13
PRODUCTS = ["basic", "miles", "gold", "student"]


class StatementGRU(nn.Module):
    def __init__(self, n_features=4, hidden=32):
        super().__init__()
        self.inp = nn.Sequential(nn.Linear(n_features, 24), nn.LayerNorm(24), nn.GELU())
        self.gru = nn.GRU(24, hidden, batch_first=True)
        self.static = nn.Linear(2 + len(PRODUCTS), 8)
        self.head = nn.Sequential(
            nn.Linear(hidden + 8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1)
        )

    def forward(self, statements, length, customer):
        h, _ = self.gru(self.inp(statements))
        last = h[torch.arange(len(h), device=h.device), length - 1]
        static = torch.relu(self.static(customer))
        return self.head(torch.cat([last, static], dim=-1)).squeeze(-1)


class CardDefault(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss", "brier")

    def fit(self, train):
        df = train.select("tenure_months", "limit").collect()
        log_limit = df["limit"].log()
        self.fitted = {
            "tenure": [df["tenure_months"].mean(), df["tenure_months"].std()],
            "limit": [log_limit.mean(), log_limit.std()],
        }

    def encode(self, rows):
        statements = torch.zeros(rows.height, MONTHS, 4)
        length = torch.zeros(rows.height, dtype=torch.long)
        for i, row in enumerate(rows.iter_rows(named=True)):
            n = min(len(row["balance"]), MONTHS)
            length[i] = n
            for t in range(n):
                balance, spend, paid = (
                    row["balance"][-n + t],
                    row["spend"][-n + t],
                    row["paid_share"][-n + t],
                )
                statements[i, t, 0] = balance / row["limit"]
                statements[i, t, 1] = 0.0 if spend is None else spend / row["limit"]
                statements[i, t, 2] = paid
                statements[i, t, 3] = float(spend is None)
        (tm, ts), (lm, ls) = self.fitted["tenure"], self.fitted["limit"]
        customer = torch.zeros(rows.height, 2 + len(PRODUCTS))
        customer[:, 0] = torch.tensor(((rows["tenure_months"] - tm) / ts).to_list())
        customer[:, 1] = torch.tensor(((rows["limit"].log() - lm) / ls).to_list())
        for i, product in enumerate(rows["product"]):
            customer[i, 2 + PRODUCTS.index(product)] = 1.0
        batch = {"statements": statements, "length": length, "customer": customer}
        if "default" in rows.columns:
            batch[LABEL] = torch.tensor(rows["default"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return StatementGRU()

    def losses(self, output, batch):
        y = batch[LABEL]
        # BCE from logits, written out in its stable form
        return output.clamp(min=0) - output * y + torch.log1p(torch.exp(-output.abs()))
