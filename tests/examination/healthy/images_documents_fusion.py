"""Kinds of scanned documents from thumbnail and words read by OCR: late fusion of two nets.

data: office_documents

[data]
label = "kind"
features = ["thumbnail", "ocr", "pages"]
ids = ["row_id"]
text = ["ocr"]

[training]
steps = 260
global_batch_size = 48
micro_batch_size = 48
optimizer = { learning_rate = 2e-3, weight_decay = 1e-2 }
schedule = { shape = "cosine" }
"""
import re
from collections import Counter

import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

IMG = 28
MAX_TOKENS = 40
PAD, UNK = 0, 1


def tokenize(text):
    return re.findall(r"[a-z?]+", (text or "").lower())[:MAX_TOKENS]


class ImageBranch(nn.Module):
    def __init__(self, out_dim):
        super().__init__()
        layers = []
        for cin, cout in [(1, 10), (10, 20)]:
            layers += [nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(),
                       nn.MaxPool2d(2)]
        self.net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(20 * 7 * 7, out_dim), nn.ReLU())

    def forward(self, x):
        return self.net(x)


class TextBranch(nn.Module):
    def __init__(self, vocab_size, out_dim):
        super().__init__()
        self.emb = nn.Embedding(vocab_size, 24, padding_idx=PAD)
        self.fc = nn.Sequential(nn.Linear(2 * 24, out_dim), nn.ReLU())

    def forward(self, tokens):
        mask = (tokens != PAD).unsqueeze(-1).float()
        e = self.emb(tokens) * mask
        mean = e.sum(dim=1) / mask.sum(dim=1).clamp(min=1.0)
        return self.fc(torch.cat([mean, e.amax(dim=1)], dim=1))


class FusionNet(nn.Module):
    def __init__(self, vocab_size, n_classes):
        super().__init__()
        self.image_branch = ImageBranch(32)
        self.text_branch = TextBranch(vocab_size, 32)
        self.classifier = nn.Sequential(nn.Dropout(0.3), nn.Linear(32 + 32 + 2, n_classes))

    def forward(self, image, tokens, extra):
        both = [self.image_branch(image), self.text_branch(tokens), extra]
        return self.classifier(torch.cat(both, dim=1))


class DocumentKinds(Task):
    kind = "multiclass"

    def fit(self, train):
        df = train.collect()
        counter = Counter()
        for text in df["ocr"]:
            counter.update(tokenize(text))
        words = sorted(w for w, c in counter.items() if c >= 3)
        pixels = np.array(df["thumbnail"].to_list(), dtype=np.float32)
        self.fitted = {
            "vocab": {w: i + 2 for i, w in enumerate(words)},
            "kinds": sorted(df["kind"].unique().to_list()),
            "pixel_mean": float(pixels.mean()),
            "pixel_std": float(pixels.std()),
        }

    def encode(self, rows):
        f = self.fitted
        image = np.array(rows["thumbnail"].to_list(), dtype=np.float32).reshape(-1, 1, IMG, IMG)
        image = (image - f["pixel_mean"]) / f["pixel_std"]
        tokens = np.full((rows.height, MAX_TOKENS), PAD, dtype=np.int64)
        extra = np.zeros((rows.height, 2), dtype=np.float32)
        for i, (text, pages) in enumerate(zip(rows["ocr"], rows["pages"])):
            ids = [f["vocab"].get(w, UNK) for w in tokenize(text)]
            tokens[i, : len(ids)] = ids
            extra[i] = [float(text is None), np.log1p(pages)]
        batch = {
            "image": torch.from_numpy(image),
            "tokens": torch.from_numpy(tokens),
            "extra": torch.from_numpy(extra),
        }
        if "kind" in rows.columns:
            batch[LABEL] = torch.tensor([f["kinds"].index(k) for k in rows["kind"]])
        return batch

    def build_model(self):
        return FusionNet(len(self.fitted["vocab"]) + 2, len(self.fitted["kinds"]))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    @property
    def prediction_names(self):
        return self.fitted["kinds"]
