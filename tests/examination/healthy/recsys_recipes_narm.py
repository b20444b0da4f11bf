"""The recipe that a visitor opens next, as RecBole's NARM: a GRU's last state, and attention of
that state over the session; scores against the recipes' own vectors.

data: recipe_sessions

[data]
label = "next"
ids = ["row_id", "session"]

[training]
steps = 700
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 5e-3, weight_decay = 0.1 }
"""

import torch
from torch import nn
from torch.nn import functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MAX_ITEM_LIST_LENGTH = 10


class NARM(nn.Module):
    def __init__(self, n_items, embedding_size=24, hidden_size=32):
        super().__init__()
        self.item_embedding = nn.Embedding(n_items + 1, embedding_size, padding_idx=0)
        self.emb_dropout = nn.Dropout(0.2)
        self.gru = nn.GRU(embedding_size, hidden_size, bias=False, batch_first=True)
        self.a_1 = nn.Linear(hidden_size, hidden_size, bias=False)
        self.a_2 = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_t = nn.Linear(hidden_size, 1, bias=False)
        self.ct_dropout = nn.Dropout(0.2)
        self.b = nn.Linear(2 * hidden_size, embedding_size, bias=False)
        nn.init.normal_(self.item_embedding.weight[1:].detach(), std=0.1)

    def gather_indexes(self, output, index):
        index = index.view(-1, 1, 1).expand(-1, -1, output.size(-1))
        return output.gather(dim=1, index=index).squeeze(1)

    def forward(self, item_seq, item_seq_len):
        emb = self.emb_dropout(self.item_embedding(item_seq))
        gru_out, _ = self.gru(emb)
        ht = self.gather_indexes(gru_out, item_seq_len - 1)  # global preference
        mask = (item_seq > 0).unsqueeze(-1)
        alpha = self.v_t(torch.sigmoid(self.a_1(gru_out) + self.a_2(ht).unsqueeze(1)))
        c_local = (alpha * mask * gru_out).sum(dim=1)
        seq_output = self.b(self.ct_dropout(torch.cat([c_local, ht], dim=1)))
        return seq_output @ self.item_embedding.weight[1:].T


class NextRecipe(Task):
    kind = "multiclass"
    metrics = directions_of("log_loss", "top_5_accuracy", "accuracy")

    def fit(self, train):
        df = train.collect()
        self.fitted = {"items": sorted({*df["opened"].explode(), *df["next"]})}

    def encode(self, rows):
        token2id = {token: i for i, token in enumerate(self.fitted["items"], start=1)}
        item_seq = torch.zeros(rows.height, MAX_ITEM_LIST_LENGTH, dtype=torch.long)
        item_seq_len = torch.ones(rows.height, dtype=torch.long)
        for i, session in enumerate(rows["opened"].to_list()):
            ids = [token2id[t] for t in session if t in token2id][-MAX_ITEM_LIST_LENGTH:]
            item_seq[i, : len(ids)] = torch.tensor(ids, dtype=torch.long)
            item_seq_len[i] = max(len(ids), 1)
        batch = {"item_seq": item_seq, "item_seq_len": item_seq_len}
        if "next" in rows.columns:
            batch[LABEL] = torch.tensor([token2id[t] - 1 for t in rows["next"]])
        return batch

    def build_model(self):
        return NARM(len(self.fitted["items"]))

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    @property
    def prediction_names(self):
        return self.fitted["items"]
