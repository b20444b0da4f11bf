"""What a visitor of a shop does next: a GRU over the last twelve clicks, their pages and pauses, visitors kept whole.

data: shop_visits

[data]
label = "next_step"
features = ["device", "steps", "pages", "pauses"]
group = "visitor"
meta = ["at"]
ids = ["row_id"]

[split]
method = "group"

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 3e-3, weight_decay = 0.05 }
schedule = { shape = "constant" }
"""
import math

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MAXLEN = 12


class ClickGRU(nn.Module):
    def __init__(self, n_steps, n_pages, n_devices, n_classes, hidden=48):
        super().__init__()
        self.step = nn.Embedding(n_steps, 12, padding_idx=0)
        self.page = nn.Embedding(n_pages, 6, padding_idx=0)
        self.device = nn.Embedding(n_devices, 3)
        self.gru = nn.GRU(12 + 6 + 1, hidden, batch_first=True)
        self.fc = nn.Sequential(nn.Linear(hidden + 3, 32), nn.ReLU(), nn.Linear(32, n_classes))

    def forward(self, steps, pages, pauses, device):
        lengths = (steps > 0).sum(dim=1).clamp(min=1)
        x = torch.cat([self.step(steps), self.page(pages), pauses.unsqueeze(-1)], dim=-1)
        out, _ = self.gru(x)
        last = out[torch.arange(len(out)), lengths - 1]
        return self.fc(torch.cat([last, self.device(device)], dim=1))


def pad(sequences, value):
    return [list(s) + [value] * (MAXLEN - len(s)) for s in sequences]


class NextStep(Task):
    kind = "multiclass"
    metrics = directions_of("log_loss", "accuracy", "macro_f1")

    def fit(self, train):
        df = train.collect()
        self.steps = sorted(set(df["steps"].explode().to_list()))
        self.pages = sorted(set(df["pages"].explode().to_list()))
        self.devices = sorted(set(df["device"].to_list()))
        self.classes = sorted(set(df["next_step"].to_list()))

    def state(self):
        return {"steps": self.steps, "pages": self.pages, "devices": self.devices, "classes": self.classes}

    def load_state(self, state):
        for name, value in state.items():
            setattr(self, name, value)

    def encode(self, rows):
        step_id = {s: i for i, s in enumerate(self.steps, start=1)}
        page_id = {p: i for i, p in enumerate(self.pages, start=1)}
        steps = [[step_id.get(s, 0) for s in seq[-MAXLEN:]] for seq in rows["steps"].to_list()]
        pages = [[page_id.get(p, 0) for p in seq[-MAXLEN:]] for seq in rows["pages"].to_list()]
        pauses = [[math.log1p(t) / 3 for t in seq[-MAXLEN:]] for seq in rows["pauses"].to_list()]
        batch = {
            "steps": torch.tensor(pad(steps, 0)),
            "pages": torch.tensor(pad(pages, 0)),
            "pauses": torch.tensor(pad(pauses, 0.0), dtype=torch.float32),
            "device": torch.tensor([self.devices.index(d) + 1 if d in self.devices else 0 for d in rows["device"]]),
        }
        if "next_step" in rows.columns:
            batch[LABEL] = torch.tensor([self.classes.index(s) for s in rows["next_step"]])
        return batch

    def build_model(self):
        return ClickGRU(len(self.steps) + 1, len(self.pages) + 1, len(self.devices) + 1, len(self.classes))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    @property
    def prediction_names(self):
        return self.classes
