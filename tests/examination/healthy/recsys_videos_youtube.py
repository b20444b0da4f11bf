"""The next video: the mean of the last watched ones, age and country, a tower of ReLUs, a softmax
over all (YouTube's candidates).

data: video_watches

[data]
label = "next_video"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 3e-3, weight_decay = 0.1 }
"""

import polars as pl
import torch
from torch import nn
from torch.nn import functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MAX_LEN = 8
PAD = 0


class CandidateNet(nn.Module):
    def __init__(self, n_videos, n_countries, dim=16):
        super().__init__()
        self.video = nn.Embedding(n_videos + 1, dim, padding_idx=PAD)
        self.country = nn.Embedding(n_countries + 1, 6)
        self.tower = nn.Sequential(
            nn.Linear(2 * dim + 6 + 3, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 48), nn.ReLU()
        )
        self.out = nn.Linear(48, n_videos)

    def forward(self, watched, country, age):
        vectors = self.video(watched)
        mask = (watched != PAD).unsqueeze(-1)
        mean = (vectors * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        latest = vectors[:, -1]
        user = torch.cat([mean, latest, self.country(country), age], dim=1)
        return self.out(self.tower(user))


class NextVideo(Task):
    kind = "multiclass"
    metrics = directions_of("top_5_accuracy", "log_loss", "accuracy")

    def fit(self, train):
        df = train.collect()
        self.fitted = {
            "videos": sorted(set(df["next_video"]) | set(df["watched"].explode())),
            "countries": sorted(set(df["country"])),
            "age": df["age"].median(),
        }

    def encode(self, rows):
        video_to_id = {v: i + 1 for i, v in enumerate(self.fitted["videos"])}
        country_to_id = {c: i + 1 for i, c in enumerate(self.fitted["countries"])}
        watched = torch.full((rows.height, MAX_LEN), PAD, dtype=torch.long)
        for i, history in enumerate(rows["watched"].to_list()):
            ids = [video_to_id[v] for v in history if v in video_to_id]
            ids = ids[-MAX_LEN:]
            if ids:
                watched[i, -len(ids) :] = torch.tensor(ids)  # the latest is always at the right
        known = rows["age"].is_not_null().cast(pl.Float32).to_torch()
        years = rows["age"].fill_null(self.fitted["age"]).cast(pl.Float32).to_torch() / 100
        batch = {
            "watched": watched,
            "country": torch.tensor([country_to_id.get(c, 0) for c in rows["country"]]),
            "age": torch.stack([years, years.sqrt(), known], dim=1),
        }
        if "next_video" in rows.columns:
            batch[LABEL] = torch.tensor([video_to_id[v] - 1 for v in rows["next_video"]])
        return batch

    def build_model(self):
        return CandidateNet(len(self.fitted["videos"]), len(self.fitted["countries"]))

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    @property
    def prediction_names(self):
        return self.fitted["videos"]
