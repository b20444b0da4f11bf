"""Typed amounts to three fields: characters through nn.TransformerEncoder, three heads.

data: order_measures

[data]
label = "filed"
features = ["typed"]
ids = ["row_id"]
meta = ["shop"]
text = ["typed"]

[training]
steps = 450
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
schedule = { shape = "cosine", warmup_fraction = 0.1 }
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, Task

PAD, CLS, UNK = 0, 1, 2
MAX_CHARS = 26
UNITS = ["g", "ml", "pc"]
OPEN = "?"  # the clerk left the good open
IGNORE = -100


class FieldsTransformer(nn.Module):
    def __init__(self, n_chars, n_amounts, n_goods, d_model=48):
        super().__init__()
        self.d_model = d_model
        self.chars = nn.Embedding(n_chars, d_model, padding_idx=PAD)
        self.positions = nn.Embedding(MAX_CHARS + 1, d_model)
        layer = nn.TransformerEncoderLayer(
            d_model, nhead=4, dim_feedforward=96, dropout=0.05, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(d_model)
        self.amount = nn.Linear(d_model, n_amounts)
        self.unit = nn.Linear(d_model, len(UNITS))
        self.good = nn.Linear(d_model, n_goods)
        nn.init.normal_(self.chars.weight, std=0.1)
        nn.init.normal_(self.positions.weight, std=0.1)

    def forward(self, chars):
        place = torch.arange(chars.size(1), device=chars.device)
        x = self.chars(chars) + self.positions(place)
        h = self.encoder(x, src_key_padding_mask=chars == PAD)
        h = self.norm(h[:, 0])
        return torch.cat([self.unit(h), self.good(h), self.amount(h)], dim=1)


class MeasureFields(Task):
    kind = "statistic"
    metrics = {"all_right": "maximize", "amount_right": "maximize", "good_right": "maximize"}
    serves_predictions = True

    def fit(self, train):
        df = train.collect()
        chars = sorted(set("".join(df["typed"]).lower()))
        filed = [f.split() for f in df["filed"]]
        self.fitted = {
            "chars": "".join(chars),
            "goods": sorted({good for _, _, good in filed if good != OPEN}),
            "amounts": sorted({int(amount) for amount, _, _ in filed}),
        }

    def encode(self, rows):
        index = {c: i + 3 for i, c in enumerate(self.fitted["chars"])}
        chars = torch.full((rows.height, MAX_CHARS + 1), PAD)
        chars[:, 0] = CLS
        for i, text in enumerate(rows["typed"]):
            ids = [index.get(c, UNK) for c in text.lower()][:MAX_CHARS]
            chars[i, 1 : len(ids) + 1] = torch.tensor(ids, dtype=torch.long)
        batch = {"chars": chars}
        if "filed" in rows.columns:
            goods = {g: i for i, g in enumerate(self.fitted["goods"])}
            amounts = {a: i for i, a in enumerate(self.fitted["amounts"])}
            target = []
            for filed in rows["filed"]:
                amount, unit, good = filed.split()
                a = amounts.get(int(amount), IGNORE)  # never seen in training: nothing to learn
                target.append((a, UNITS.index(unit), goods.get(good, IGNORE)))
            batch[LABEL] = torch.tensor(target)
        return batch

    def build_model(self):
        f = self.fitted
        return FieldsTransformer(len(f["chars"]) + 3, len(f["amounts"]), len(f["goods"]))

    def heads(self, output):
        n = len(UNITS) + len(self.fitted["goods"])
        return output[:, n:], output[:, : len(UNITS)], output[:, len(UNITS) : n]

    def losses(self, output, batch):
        total = 0.0
        for logits, target in zip(self.heads(output), batch[LABEL].unbind(dim=1)):
            total += F.cross_entropy(logits, target, ignore_index=IGNORE, reduction="none")
        return total

    def predict(self, output):
        amount, unit, good = (logits.argmax(dim=1) for logits in self.heads(output))
        return torch.stack([torch.tensor(self.fitted["amounts"])[amount], unit, good], dim=1)

    def statistic(self, output, batch):
        amount, unit, good = batch[LABEL].unbind(dim=1)
        said_amount, said_unit, said_good = (x.argmax(dim=1) for x in self.heads(output))
        amount_right = said_amount == amount
        good_right = (said_good == good) | (good == IGNORE)
        every = amount_right & (said_unit == unit) & good_right
        return torch.stack([every, amount_right, good_right], dim=1).double()

    def score(self, predictions, labels):
        means = np.average(predictions, axis=0, weights=labels)
        return dict(zip(("all_right", "amount_right", "good_right"), means.tolist()))
