"""Knowledge tracing by self-attention: what a learner solved so far asks about the next exercise, every step is a label.

data: learner_histories

[data]
label = "solved"
time = "started_at"
features = ["skills", "solved"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, WEIGHT, Task

SEQ = 50
NONE = -1


class SAKT(nn.Module):
    def __init__(self, n_skill, embed_dim=32):
        super().__init__()
        self.n_skill = n_skill
        self.embedding = nn.Embedding(2 * n_skill + 1, embed_dim, padding_idx=0)
        self.pos_embedding = nn.Embedding(SEQ, embed_dim)
        self.e_embedding = nn.Embedding(n_skill + 1, embed_dim)
        self.multi_att = nn.MultiheadAttention(embed_dim, num_heads=4, dropout=0.1)
        self.layer_normal = nn.LayerNorm(embed_dim)
        self.ffn = nn.Sequential(nn.Linear(embed_dim, embed_dim), nn.ReLU(), nn.Linear(embed_dim, embed_dim), nn.Dropout(0.1))
        self.pred = nn.Linear(embed_dim, 1)

    def forward(self, x, question_ids):
        x = self.embedding(x) + self.pos_embedding(torch.arange(SEQ, device=x.device))
        e = self.e_embedding(question_ids)
        x, e = x.permute(1, 0, 2), e.permute(1, 0, 2)
        future = torch.triu(torch.ones(SEQ, SEQ, dtype=torch.bool, device=x.device), diagonal=1)
        att, _ = self.multi_att(e, x, x, attn_mask=future, need_weights=False)
        att = self.layer_normal(att + e).permute(1, 0, 2)
        return self.pred(self.ffn(att) + att).squeeze(-1)


class KnowledgeTracing(Task):
    kind = "statistic"
    metrics = {"step_log_loss": "minimize", "step_accuracy": "maximize"}

    def fit(self, train):
        df = train.collect()
        self.fitted = {"skills": sorted(df["skills"].explode().unique().to_list())}

    def encode(self, rows):
        skill_id = {s: i for i, s in enumerate(self.fitted["skills"], start=1)}
        n = len(skill_id)
        questions = np.zeros((rows.height, SEQ), dtype=np.int64)
        interactions = np.zeros((rows.height, SEQ), dtype=np.int64)
        target = np.full((rows.height, SEQ), NONE, dtype=np.float32)
        for i, (skills, solved) in enumerate(zip(rows["skills"].to_list(), rows["solved"].to_list())):
            q = np.array([skill_id.get(s, 0) for s in skills[-SEQ:]])
            a = np.array(solved[-SEQ:])
            questions[i, : len(q)] = q
            interactions[i, 1 : len(q)] = (q + a * n)[:-1]
            target[i, : len(q)] = a
        return {
            "x": torch.from_numpy(interactions),
            "question_ids": torch.from_numpy(questions),
            LABEL: torch.from_numpy(target),
            WEIGHT: torch.from_numpy((target != NONE).sum(axis=1).astype(np.float32)),
        }

    def build_model(self):
        return SAKT(len(self.fitted["skills"]))

    def losses(self, output, batch):
        real = batch[LABEL] != NONE
        bce = F.binary_cross_entropy_with_logits(output, batch[LABEL].clamp(min=0), reduction="none")
        return (bce * real).sum(dim=1) / real.sum(dim=1)

    def statistic(self, output, batch):
        real = batch[LABEL] != NONE
        right = ((output > 0) == (batch[LABEL] > 0.5)) & real
        return torch.stack([self.losses(output, batch), right.sum(dim=1) / real.sum(dim=1)], dim=1)

    def score(self, predictions, labels):
        loss, right = np.average(predictions, axis=0, weights=labels)
        return {"step_log_loss": float(loss), "step_accuracy": float(right)}
