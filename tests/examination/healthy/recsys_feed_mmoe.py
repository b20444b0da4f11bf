"""Multi-gate mixture of experts over a video feed: P(click), and P(watched to the end).

data: video_feed

[data]
label = "outcome"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 3e-3, weight_decay = 0.5 }
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, Task


class MMoE(nn.Module):
    def __init__(self, cardinalities, dense_dim, emb_dim=4, expert_num=4, expert_dim=24, tasks=2):
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(c, emb_dim) for c in cardinalities])
        for table in self.embeddings:
            nn.init.normal_(table.weight, std=0.1)
        self.dropout = nn.Dropout(0.1)
        in_dim = emb_dim * (len(cardinalities) + 1) + dense_dim
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(in_dim, expert_dim), nn.ReLU()) for _ in range(expert_num)])
        self.gates = nn.ModuleList([nn.Linear(in_dim, expert_num) for _ in range(tasks)])
        self.towers = nn.ModuleList(
            [nn.Sequential(nn.Linear(expert_dim, 12), nn.ReLU(), nn.Linear(12, 1)) for _ in range(tasks)]
        )

    def forward(self, sparse, dense):
        fields = [table(sparse[:, k]) for k, table in enumerate(self.embeddings)]
        looked_up = torch.cat([*fields, fields[0] * fields[1]], dim=1)
        x = torch.cat([self.dropout(looked_up), dense], dim=1)
        experts = torch.stack([expert(x) for expert in self.experts], dim=1)  # B, E, D
        answers = []
        for gate, tower in zip(self.gates, self.towers):
            mixture = F.softmax(gate(x), dim=1).unsqueeze(1) @ experts  # B, 1, D
            answers.append(tower(mixture.squeeze(1)))
        return torch.cat(answers, dim=1)


class FeedRanking(Task):
    kind = "statistic"
    metrics = {"log_loss_click": "minimize", "log_loss_finish": "minimize"}
    serves_predictions = True
    sparse = ("person", "video", "device")

    def fit(self, train):
        df = train.collect()
        self.vocab = {c: {v: k + 1 for k, v in enumerate(sorted(df[c].unique()))} for c in self.sparse}
        seconds = np.log(df["seconds"].to_numpy())
        self.length = [float(seconds.mean()), float(seconds.std())]

    def state(self):
        return {"vocab": self.vocab, "length": self.length}

    def load_state(self, state):
        self.vocab, self.length = state["vocab"], state["length"]

    def encode(self, rows):
        sparse = [[self.vocab[c].get(v, 0) for v in rows[c]] for c in self.sparse]
        hour = rows["hour"].to_numpy() * (2 * np.pi / 24)
        length = (np.log(rows["seconds"].to_numpy()) - self.length[0]) / self.length[1]
        batch = {
            "sparse": torch.tensor(sparse).T.contiguous(),
            "dense": torch.tensor(np.stack([length, np.sin(hour), np.cos(hour)], 1), dtype=torch.float32),
        }
        if "outcome" in rows.columns:
            batch[LABEL] = torch.tensor(rows["outcome"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return MMoE([len(self.vocab[c]) + 1 for c in self.sparse], 3)

    def losses(self, output, batch):
        return self.statistic(output, batch).sum(dim=1)

    def predict(self, output):
        return torch.sigmoid(output)

    def statistic(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def score(self, predictions, labels):
        click, finish = np.average(predictions, axis=0, weights=labels.reshape(-1))
        return {"log_loss_click": float(click), "log_loss_finish": float(finish)}

    @property
    def prediction_names(self):
        return ("click", "finish")
