"""Are two customer records one person? Names through one character CNN, agreement of birth date,
town and phone, cosines into a head.

data: customer_pairs

[data]
label = "same"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

ALPHABET = " abcdefghijklmnopqrstuvwxyz"  # 0 is padding and anything else
LENGTH = 14


def tidy(name):
    """'HOFFBERG, ANNA' and 'Anna Hoffberg' -> ('anna', 'hoffberg')."""
    name = name.lower().strip()
    if "," in name:
        last, first = name.split(",", 1)
    else:
        first, last = name.split(" ", 1)
    return first.strip(), last.strip()


def letters(word):
    ids = [max(ALPHABET.find(ch), 0) for ch in word[:LENGTH]]
    return ids + [0] * (LENGTH - len(ids))


def agreement(a, b):
    """Digits in common place by place; and whether both are known."""
    if a is None or b is None:
        return [0.0, 0.0]
    return [sum(x == y for x, y in zip(a, b)) / max(len(a), len(b)), 1.0]


class NameCNN(nn.Module):
    def __init__(self, dim=12, out=24):
        super().__init__()
        self.letters = nn.Embedding(len(ALPHABET), dim, padding_idx=0)
        self.conv = nn.Conv1d(dim, out, kernel_size=3, padding=1)

    def forward(self, ids):
        x = self.letters(ids).transpose(1, 2)
        return torch.relu(self.conv(x)).amax(dim=2)


class Linkage(nn.Module):
    def __init__(self, n_facts):
        super().__init__()
        self.names = NameCNN()
        self.fc = nn.Linear(2 * (24 + 1) + n_facts, 32)
        self.out = nn.Linear(32, 1)

    def forward(self, shop_first, shop_last, bank_first, bank_last, facts):
        compared = []
        for a, b in ((shop_first, bank_first), (shop_last, bank_last)):
            u, v = self.names(a), self.names(b)
            compared += [(u - v).abs(), F.cosine_similarity(u, v, dim=1).unsqueeze(1)]
        h = torch.relu(self.fc(torch.cat([*compared, facts], dim=1)))
        return self.out(F.dropout(h, 0.1, training=self.training))


class SamePerson(Task):
    kind = "binary"
    metrics = directions_of("average_precision", "f1", "log_loss")

    def encode(self, rows):
        batch = {}
        for side in ("shop", "bank"):
            names = [tidy(n) for n in rows[f"{side}_name"]]
            batch[f"{side}_first"] = torch.tensor([letters(first) for first, _ in names])
            batch[f"{side}_last"] = torch.tensor([letters(last) for _, last in names])
        facts = []
        for r in rows.iter_rows(named=True):
            a, b = r["shop_born"], r["bank_born"]
            born = agreement(a and a.strftime("%Y%m%d"), b and b.strftime("%Y%m%d"))
            swapped = float(bool(a and b) and (a.year, a.month, a.day) == (b.year, b.day, b.month))
            phone = agreement(r["shop_phone"], r["bank_phone"])
            facts.append([*born, swapped, *phone, float(r["shop_town"] == r["bank_town"])])
        batch["facts"] = torch.tensor(facts)
        if "same" in rows.columns:
            batch[LABEL] = rows["same"].cast(float).to_torch().float()
        return batch

    def build_model(self):
        return Linkage(6)

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output.squeeze(1), batch[LABEL], reduction="none")
