"""Toys and what children say of them: CLIP, its causal text transformer read at the end token.

data: toy_scenes

[data]
label = "caption"
features = ["picture", "caption"]
text = ["caption"]
ids = ["row_id"]
meta = ["camera"]

[training]
steps = 600
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3, weight_decay = 0.05 }
schedule = { shape = "cosine", warmup_fraction = 0.1 }
strategy = "single"

[resources]
num_processes = 1
"""
import io
import math

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CONTEXT = 18
CANDIDATES = 32
SOT = 1  # the end token has the highest number, as in CLIP, and 0 pads


class TextTransformer(nn.Module):
    def __init__(self, vocab_size, width=48, layers=2, heads=4, embed_dim=48):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, width)
        self.positional_embedding = nn.Parameter(torch.randn(CONTEXT, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, 0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.transformer = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.randn(width, embed_dim) * width**-0.5)
        nn.init.normal_(self.token_embedding.weight, std=0.05)
        mask = torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1)
        self.register_buffer("attn_mask", mask, persistent=False)

    def forward(self, text):
        x = self.token_embedding(text) + self.positional_embedding
        x = self.ln_final(self.transformer(x, mask=self.attn_mask))
        # The end token has the highest number of each caption.
        x = x[torch.arange(len(x), device=x.device), text.argmax(dim=-1)]
        return x @ self.text_projection


class Visual(nn.Module):
    def __init__(self, embed_dim=48):
        super().__init__()
        block = lambda i, o: nn.Sequential(
            nn.Conv2d(i, o, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU()
        )
        self.trunk = nn.Sequential(block(3, 24), block(24, 48), block(48, 64))
        self.proj = nn.Sequential(
            nn.Flatten(), nn.Linear(64 * 16, 96), nn.ReLU(), nn.Linear(96, embed_dim)
        )

    def forward(self, image):
        return self.proj(self.trunk(image))


class CLIP(nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.visual, self.textual = Visual(), TextTransformer(vocab_size)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, image, text):
        image_features = F.normalize(self.visual(image), dim=-1)
        text_features = F.normalize(self.textual(text), dim=-1)
        scale = self.logit_scale.exp().clamp(max=100)
        return torch.stack([scale * image_features, text_features], dim=1)


class Toys(Task):
    kind = "statistic"
    statistics = ("ahead", "tied")
    metrics = directions_of("mean_reciprocal_rank", "recall_at_1")
    needs_whole_batch = True
    scored_together = CANDIDATES

    def fit(self, train):
        captions = train.select("caption").collect()["caption"]
        self.fitted = {"words": sorted({w for caption in captions for w in caption.split()})}

    def tokenize(self, captions):
        index = {w: i + 3 for i, w in enumerate(self.fitted["words"])}
        eot = len(index) + 3
        out = torch.zeros(len(captions), CONTEXT, dtype=torch.long)
        for i, caption in enumerate(captions):
            tokens = [SOT, *(index.get(w, 2) for w in caption.split()), eot]
            if len(tokens) > CONTEXT:
                tokens = tokens[:CONTEXT]
                tokens[-1] = eot
            out[i, : len(tokens)] = torch.tensor(tokens)
        return out

    def encode(self, rows):
        images = np.zeros((rows.height, 3, 32, 32), dtype=np.float32)
        for i, data in enumerate(rows["picture"]):
            pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), dtype=np.float32)
            images[i] = ((pixels / 255 - 0.4) / 0.25).transpose(2, 0, 1)
        return {
            "image": torch.from_numpy(images),
            "text": self.tokenize(rows["caption"].to_list()),
            LABEL: torch.zeros(rows.height, dtype=torch.long),  # its own caption is right
        }

    def augment(self, batch, generator):
        image = batch["image"]
        light = 1 + 0.1 * torch.randn(len(image), 1, 1, 1, generator=generator)
        noise = 0.05 * torch.randn(image.shape, generator=generator)
        return {**batch, "image": image * light + noise}

    def build_model(self):
        return CLIP(len(self.fitted["words"]) + 4)

    @staticmethod
    def contrast(output):
        image_features, text_features = output.unbind(1)
        logits_per_image = image_features @ text_features.T
        logits_per_text = logits_per_image.T
        target = torch.arange(len(output), device=output.device)
        return (
            F.cross_entropy(logits_per_image, target, reduction="none")
            + F.cross_entropy(logits_per_text, target, reduction="none")
        ) / 2

    def training_losses(self, output, batch):
        return self.contrast(output)

    def losses(self, output, batch):
        return torch.cat([self.contrast(part) for part in output.split(CANDIDATES)])

    def statistic(self, output, batch):
        found = []
        for part in output.split(CANDIDATES):
            scores = part[:, 0] @ part[:, 1].T
            own = scores.diagonal()[:, None]
            found.append(torch.stack([(scores > own).sum(1), (scores == own).sum(1)], dim=1))
        return torch.cat(found).double()
