"""Loan defaults as fast.ai's tabular learner has them: Categorify, FillMissing, Normalize, dates parsed, embeddings.

data: personal_loans

[data]
label = "charged_off"
time = "issued_at"
time_is_feature = true
ids = ["row_id"]

[training]
steps = 600
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 2e-3, weight_decay = 0.05 }
schedule = { shape = "one_cycle" }
"""
import datetime as dt

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

cat_names = ["term", "grade", "employment_length", "home_ownership", "purpose", "debt_to_income_na"]
cont_names = ["loan_amount", "interest_rate", "annual_income", "debt_to_income", "credit_score", "credit_years"]
procs_log = ["loan_amount", "annual_income"]


class TabularModel(nn.Module):
    def __init__(self, emb_szs, n_cont, out_sz, layers, ps=0.1, embed_p=0.05):
        super().__init__()
        self.embeds = nn.ModuleList([nn.Embedding(ni, nf) for ni, nf in emb_szs])
        self.emb_drop = nn.Dropout(embed_p)
        self.bn_cont = nn.BatchNorm1d(n_cont)
        n_emb = sum(e.embedding_dim for e in self.embeds)
        sizes = [n_emb + n_cont, *layers]
        blocks = []
        for n_in, n_out in zip(sizes[:-1], sizes[1:]):
            blocks += [nn.Linear(n_in, n_out, bias=False), nn.ReLU(inplace=True), nn.BatchNorm1d(n_out), nn.Dropout(ps)]
        blocks.append(nn.Linear(sizes[-1], out_sz))
        self.layers = nn.Sequential(*blocks)

    def forward(self, x_cat, x_cont):
        x = torch.cat([e(x_cat[:, i]) for i, e in enumerate(self.embeds)], 1)
        x = self.emb_drop(x)
        x = torch.cat([x, self.bn_cont(x_cont)], 1)
        return self.layers(x)


class LoanDefault(Task):
    kind = "multiclass"
    metrics = directions_of("log_loss", "accuracy")

    def tabular(self, rows):
        """The columns under fast.ai's names; interest rates and dates parsed."""
        first_line = [dt.datetime.strptime(t, "%b-%Y") for t in rows["earliest_credit_line"]]
        columns = {c: rows[c].to_list() for c in cat_names[:-1]}
        columns["debt_to_income_na"] = [str(v is None) for v in rows["debt_to_income"]]
        columns |= {c: rows[c].cast(float).to_numpy() for c in ("loan_amount", "annual_income", "debt_to_income", "credit_score")}
        columns["interest_rate"] = np.array([float(r.rstrip("%")) for r in rows["interest_rate"]])
        columns["credit_years"] = np.array([(t - f).days / 365.25 for t, f in zip(rows["issued_at"], first_line)])
        return columns | {c: np.log(columns[c]) for c in procs_log}

    def fit(self, train):
        columns = self.tabular(train.collect())
        self.fitted = {
            "classes": {c: ["#na#", *sorted({v for v in columns[c] if v is not None})] for c in cat_names},
            "medians": {c: float(np.nanmedian(columns[c])) for c in cont_names},
            "means": {c: float(np.nanmean(columns[c])) for c in cont_names},
            "stds": {c: float(np.nanstd(columns[c])) for c in cont_names},
        }

    def encode(self, rows):
        columns = self.tabular(rows)
        o2i = {c: {v: i for i, v in enumerate(self.fitted["classes"][c])} for c in cat_names}
        cats = [[o2i[c].get(v, 0) for v in columns[c]] for c in cat_names]
        conts = []
        for c in cont_names:
            filled = np.where(np.isnan(columns[c]), self.fitted["medians"][c], columns[c])
            conts.append((filled - self.fitted["means"][c]) / self.fitted["stds"][c])
        batch = {
            "x_cat": torch.tensor(cats).T.contiguous(),
            "x_cont": torch.tensor(np.stack(conts, 1), dtype=torch.float32),
        }
        if "charged_off" in rows.columns:
            batch[LABEL] = torch.tensor(rows["charged_off"].to_list())
        return batch

    def build_model(self):
        sizes = [len(self.fitted["classes"][c]) for c in cat_names]
        return TabularModel([(n, min(600, round(1.6 * n**0.56))) for n in sizes], len(cont_names), 2, [100, 50])

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")
