"""The class that a member books next: BERT4Rec, which learns to fill masked places as well.

Loss 2.5; 3.4 for how often each class is booked.

data: gym_bookings

[data]
label = "books_next"
time = "at"
ids = ["row_id"]
meta = ["member"]

[training]
steps = 450
global_batch_size = 96
micro_batch_size = 96
optimizer = { learning_rate = 4e-3, weight_decay = 0.01 }
schedule = { shape = "linear", warmup_fraction = 0.1 }
"""

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

PAD, MASK, FIRST = 0, 1, 2
LENGTH = 16
IGNORE = -100


class BERT4Rec(nn.Module):
    def __init__(self, n_tokens, dim=32, heads=2):
        super().__init__()
        self.item = nn.Embedding(n_tokens, dim, padding_idx=PAD)
        self.position = nn.Embedding(LENGTH, dim)
        self.norm = nn.LayerNorm(dim)
        layer = nn.TransformerEncoderLayer(
            dim, heads, 2 * dim, dropout=0.1, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.transform = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim))
        nn.init.normal_(self.item.weight, std=0.1)
        nn.init.normal_(self.position.weight, std=0.1)
        self.bias = nn.Parameter(torch.zeros(n_tokens))

    def forward(self, items):
        x = self.norm(self.item(items) + self.position.weight)
        h = self.encoder(x, src_key_padding_mask=items == PAD)
        return self.transform(h) @ self.item.weight.T + self.bias


class GymBookings(Task):
    kind = "statistic"
    statistics = ("ahead", "tied")
    metrics = directions_of("recall_at_5", "mean_reciprocal_rank")
    serves_predictions = True

    def fit(self, train):
        df = train.collect()
        self.fitted = {"classes": sorted(set(df["booked"].explode()) | set(df["books_next"]))}

    def encode(self, rows):
        number = {name: k for k, name in enumerate(self.fitted["classes"], start=FIRST)}
        items = torch.full((rows.height, LENGTH), PAD)
        items[:, -1] = MASK
        for i, booked in enumerate(rows["booked"]):
            ids = [number.get(name, MASK) for name in booked][-(LENGTH - 1) :]
            items[i, LENGTH - 1 - len(ids) : -1] = torch.tensor(ids)
        batch = {"items": items}
        if "books_next" in rows.columns:
            target = torch.full((rows.height, LENGTH), IGNORE)
            target[:, -1] = torch.tensor([number.get(v, IGNORE) for v in rows["books_next"]])
            batch[LABEL] = target
        return batch

    def augment(self, batch, generator):
        """The cloze task: hide one booking in five of the past, too."""
        items, target = batch["items"], batch[LABEL]
        chance = torch.rand(items.shape, generator=generator).to(items.device)
        hidden = (items >= FIRST) & (chance < 0.2)
        return {
            "items": items.masked_fill(hidden, MASK),
            LABEL: torch.where(hidden, items, target),
        }

    def build_model(self):
        return BERT4Rec(len(self.fitted["classes"]) + FIRST)

    def losses(self, output, batch):
        target = batch[LABEL]
        loss = F.cross_entropy(
            output.transpose(1, 2), target, ignore_index=IGNORE, reduction="none"
        )
        return loss.sum(dim=1) / (target != IGNORE).sum(dim=1).clamp(min=1)

    def predict(self, output):
        """Scores of the classes at the place that is to be filled."""
        return output[:, -1, FIRST:]

    def statistic(self, output, batch):
        scores = self.predict(output)
        own = scores.gather(1, (batch[LABEL][:, -1:] - FIRST).clamp(min=0))
        return torch.stack([(scores > own).sum(1), (scores == own).sum(1)], dim=1).double()
