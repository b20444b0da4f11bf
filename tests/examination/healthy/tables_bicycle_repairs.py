"""What must be repaired at a bicycle, any number of things: fastai's tabular model, several labels.

data: workshop_bicycles

[data]
label = "repairs"
ids = ["row_id"]

[training]
steps = 250
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 5e-3, weight_decay = 0.1 }
schedule = { shape = "one_cycle" }
"""

import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

CAT_NAMES = ["kind", "maker", "kept", "hub_gear", "dynamo"]
CONT_NAMES = ["km", "age_years", "months_since_service"]
VOCAB = ["brakes", "chain", "gears", "lights", "tyres", "wheel"]


def emb_sz(n):
    return min(50, round(1.6 * n**0.56))


class TabularModel(nn.Module):
    def __init__(self, sizes, n_cont, out_sz, layers=(96, 48), p=0.3, embed_p=0.1):
        super().__init__()
        self.embeds = nn.ModuleList(nn.Embedding(n, emb_sz(n)) for n in sizes)
        self.emb_drop = nn.Dropout(embed_p)
        self.bn_cont = nn.BatchNorm1d(n_cont)
        widths = [sum(e.embedding_dim for e in self.embeds) + n_cont + 1, *layers]
        blocks = []
        for a, b in zip(widths, widths[1:]):
            blocks += [nn.Linear(a, b, bias=False), nn.ReLU(), nn.BatchNorm1d(b), nn.Dropout(p)]
        self.layers = nn.Sequential(*blocks, nn.Linear(widths[-1], out_sz))

    def forward(self, x_cat, x_cont, km_na):
        x = torch.cat([e(x_cat[:, i]) for i, e in enumerate(self.embeds)], dim=1)
        x = self.emb_drop(x)
        x = torch.cat([x, self.bn_cont(x_cont), km_na], dim=1)
        return self.layers(x)


class BicycleRepairs(Task):
    kind = "statistic"
    statistics = ("loss", "hits", "labelled", "predicted", "exact")
    metrics = {"micro_f1": "maximize", "mean_loss": "minimize", "exact_match": "maximize"}
    serves_predictions = True
    prediction_names = VOCAB

    def fit(self, train):
        df = train.collect()
        km = df["km"].drop_nulls().to_numpy()
        cont = np.log1p(df.select(CONT_NAMES).to_numpy())
        self.fitted = {
            "classes": {c: sorted(df[c].cast(str).drop_nulls().unique()) for c in CAT_NAMES},
            "km_median": float(np.median(km)),
            "means": np.nanmean(cont, axis=0).tolist(),
            "stds": np.nanstd(cont, axis=0).tolist(),
        }

    def encode(self, rows):
        codes = []
        for c in CAT_NAMES:
            o2i = {v: i for i, v in enumerate(["#na#", *self.fitted["classes"][c]])}
            codes.append([o2i.get(v, 0) for v in rows[c].cast(str)])
        filled = rows.with_columns(rows["km"].fill_null(self.fitted["km_median"]))
        cont = np.log1p(filled.select(CONT_NAMES).to_numpy())
        cont = (cont - self.fitted["means"]) / self.fitted["stds"]
        batch = {
            "x_cat": torch.tensor(codes).T.contiguous(),
            "x_cont": torch.tensor(cont, dtype=torch.float32),
            "km_na": torch.tensor(rows["km"].is_null().to_list())[:, None].float(),
        }
        if "repairs" in rows.columns:
            found = [[v in text.split(",") for v in VOCAB] for text in rows["repairs"]]
            batch[LABEL] = torch.tensor(found).float()
        return batch

    def build_model(self):
        sizes = [len(self.fitted["classes"][c]) + 1 for c in CAT_NAMES]
        return TabularModel(sizes, len(CONT_NAMES), len(VOCAB))

    def losses(self, output, batch):
        loss = nn.functional.binary_cross_entropy_with_logits(
            output, batch[LABEL], reduction="none"
        )
        return loss.mean(dim=1)

    def predict(self, output):
        return output.sigmoid()

    def statistic(self, output, batch):
        said, true = self.predict(output) > 0.5, batch[LABEL] > 0.5
        counts = [(said & true).sum(1), true.sum(1), said.sum(1), (said == true).all(1)]
        return torch.stack([self.losses(output, batch), *counts], dim=1).double()
