"""Tags of clips from quantised features of a pretrained net, as in the YouTube-8M competition:
NetVLAD over a ragged number of seconds, context gating, a mixture of experts per tag, BCE on
probabilities.

data: clip_features

[data]
label = "tags"
features = ["rgb"]
time = "uploaded"
ids = ["row_id", "video"]
meta = ["channel"]

[training]
steps = 250
global_batch_size = 80
micro_batch_size = 80
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, Task

MAX_FRAMES = 60
FEATURES = 24
VOCAB = ("game", "music", "car", "food", "dance", "guitar", "football", "garden", "train")


def dequantize(feat_vector, max_quantized_value=2.0, min_quantized_value=-2.0):
    quantized_range = max_quantized_value - min_quantized_value
    scalar = quantized_range / 255.0
    bias = (quantized_range / 512.0) + min_quantized_value
    return feat_vector * scalar + bias


def gap(p, y, top_k=5):
    """Global average precision: the best answers of all clips in one list."""
    best = np.argsort(-p, axis=1)[:, :top_k]
    rows = np.arange(len(p))[:, None]
    score, hit = p[rows, best].ravel(), y[rows, best].ravel()
    hit = hit[np.argsort(-score, kind="stable")]
    precision = np.cumsum(hit) / np.arange(1, len(hit) + 1)
    return float((precision * hit).sum() / max(1.0, y.sum()))


class NetVLAD(nn.Module):
    def __init__(self, features, clusters):
        super().__init__()
        self.cluster_weights = nn.Parameter(torch.randn(features, clusters) / features**0.5)
        self.cluster_biases = nn.Parameter(torch.zeros(clusters))
        self.centers = nn.Parameter(torch.randn(features, clusters) / features**0.5)

    def forward(self, x, mask):
        assign = (3.0 * x @ self.cluster_weights + self.cluster_biases).softmax(-1)
        assign = assign * mask.unsqueeze(-1)
        vlad = torch.einsum("btf,btk->bfk", x, assign) - self.centers * assign.sum(1, keepdim=True)
        vlad = F.normalize(vlad, dim=1)  # per cluster
        return F.normalize(vlad.flatten(1), dim=1)


class ContextGating(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.fc = nn.Linear(d, d, bias=False)
        self.bn = nn.BatchNorm1d(d)

    def forward(self, x):
        return x * torch.sigmoid(self.bn(self.fc(x)))


class MoeModel(nn.Module):
    """A softmax over experts and one that always says no, for each tag by itself."""

    def __init__(self, d, tags, mixtures=2):
        super().__init__()
        self.shape = (tags, mixtures)
        self.gates = nn.Linear(d, tags * (mixtures + 1), bias=False)
        self.experts = nn.Linear(d, tags * mixtures)
        nn.init.constant_(self.experts.bias, -1.0)

    def forward(self, x):
        tags, mixtures = self.shape
        gate = self.gates(x).view(-1, tags, mixtures + 1).softmax(-1)
        expert = self.experts(x).view(-1, tags, mixtures).sigmoid()
        return (gate[..., :mixtures] * expert).sum(-1)


class Willow(nn.Module):
    def __init__(self, clusters=16, hidden=64):
        super().__init__()
        self.input_bn = nn.BatchNorm1d(FEATURES)
        self.vlad = NetVLAD(FEATURES, clusters)
        self.hidden = nn.Linear(FEATURES * clusters, hidden, bias=False)
        self.hidden_bn = nn.BatchNorm1d(hidden)
        self.gating = ContextGating(hidden)
        self.moe = MoeModel(hidden, len(VOCAB))

    def forward(self, frames, num_frames):
        mask = torch.arange(MAX_FRAMES, device=frames.device)[None] < num_frames[:, None]
        x = self.input_bn(frames.flatten(0, 1)).view_as(frames)
        h = self.hidden_bn(self.hidden(self.vlad(x, mask.float())))
        return self.moe(self.gating(h))


class ClipTags(Task):
    kind = "statistic"
    metrics = {"gap": "maximize", "hit_at_one": "maximize"}
    serves_predictions = True

    def encode(self, rows):
        frames = torch.zeros(len(rows), MAX_FRAMES, FEATURES)
        lengths = []
        for i, raw in enumerate(rows["rgb"]):
            seconds = np.frombuffer(raw, dtype=np.uint8).reshape(-1, FEATURES)[:MAX_FRAMES]
            frames[i, : len(seconds)] = dequantize(torch.tensor(seconds, dtype=torch.float32))
            lengths.append(len(seconds))
        batch = {"frames": frames, "num_frames": torch.tensor(lengths)}
        if "tags" in rows.columns:
            y = [[float(name in tags) for name in VOCAB] for tags in rows["tags"].to_list()]
            batch[LABEL] = torch.tensor(y)
        return batch

    def build_model(self):
        return Willow()

    def losses(self, output, batch):
        epsilon = 1e-5
        y = batch[LABEL]
        ce = y * torch.log(output + epsilon) + (1 - y) * torch.log(1 - output + epsilon)
        return -ce.sum(1)

    def statistic(self, output, batch):
        return torch.cat([output, batch[LABEL]], dim=1).double()

    def score(self, predictions, labels):
        p, y = predictions[:, : len(VOCAB)], predictions[:, len(VOCAB) :]
        some = y.sum(1) > 0
        hit = y[np.arange(len(p)), p.argmax(1)][some]
        found = {"gap": gap(p, y)}
        return found | {"hit_at_one": float(hit.mean())} if some.any() else found
