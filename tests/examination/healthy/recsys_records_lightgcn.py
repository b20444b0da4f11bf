"""LightGCN: embeddings spread over the graph of listeners and records, without weights in between.

data: listens

[data]
label = "record"
ids = ["row_id"]

[training]
steps = 200
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 1e-2, weight_decay = 0.0 }
"""
import math

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class LightGCN(nn.Module):
    def __init__(self, n_users, n_items, edges, dim=12, n_layers=2, keep=0.7):
        super().__init__()
        self.n_users, self.n_layers, self.keep = n_users, n_layers, keep
        self.embedding = nn.Embedding(n_users + n_items, dim)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.bias = nn.Parameter(torch.zeros(n_items))
        graph = torch.zeros(n_users + n_items, n_users + n_items)
        users, items = torch.tensor(edges).T
        graph[users, n_users + items] = 1.0
        graph[n_users + items, users] = 1.0
        self.register_buffer("graph", graph)

    def norm_graph(self):
        graph = self.graph
        if self.training:  # edge dropout
            kept = torch.triu(torch.rand_like(graph) < self.keep)
            graph = graph * (kept | kept.T)
        degree = graph.sum(1).clamp(min=1)
        return graph / torch.sqrt(degree[:, None] * degree[None, :])

    def computer(self):
        norm = self.norm_graph()
        embs = [self.embedding.weight]
        for _ in range(self.n_layers):
            embs.append(norm @ embs[-1])
        light_out = torch.stack(embs, dim=1).mean(dim=1)
        return light_out.split([self.n_users, len(light_out) - self.n_users])

    def forward(self, listener):
        users, items = self.computer()
        return users[listener] @ items.T + self.bias


class RecordShop(Task):
    kind = "multiclass"
    metrics = directions_of("log_loss", "top_10_accuracy", "accuracy")
    decay = 2e-3

    def fit(self, train):
        df = train.select("listener", "record").collect()
        self.listeners = sorted(df["listener"].unique())
        self.records = sorted(df["record"].unique())
        user = {name: k + 1 for k, name in enumerate(self.listeners)}
        item = {name: k for k, name in enumerate(self.records)}
        self.edges = sorted([user[u], item[r]] for u, r in df.iter_rows())

    def state(self):
        return {"listeners": self.listeners, "records": self.records, "edges": self.edges}

    def load_state(self, state):
        self.listeners, self.records, self.edges = state["listeners"], state["records"], state["edges"]

    def encode(self, rows):
        user = {name: k + 1 for k, name in enumerate(self.listeners)}  # 0 has no edges
        batch = {"listener": torch.tensor([user.get(name, 0) for name in rows["listener"]])}
        if "record" in rows.columns:
            item = {name: k for k, name in enumerate(self.records)}
            batch[LABEL] = torch.tensor([item.get(name, 0) for name in rows["record"]])
        return batch

    def build_model(self):
        return LightGCN(len(self.listeners) + 1, len(self.records), self.edges)

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        return self.losses(output, batch) + self.decay * output.square().mean(dim=1)

    def predict(self, output):
        return output.softmax(dim=1)

    def expected_initial_loss(self):
        return math.log(len(self.records))
