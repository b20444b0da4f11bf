"""Product photos by kind: a small VGG with batch norm, ImageNet's mean and std, mirrored and shifted crops, label smoothing, SGD with one cycle.

data: shop_photos

[data]
label = "kind"
ids = ["row_id"]

[training]
steps = 360
global_batch_size = 64
micro_batch_size = 64
optimizer = { name = "sgd", learning_rate = 0.05, weight_decay = 5e-4 }
schedule = { shape = "one_cycle" }
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

IMG_SIZE = 24
IMAGENET_MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
IMAGENET_STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)


def conv_bn_relu(in_ch, out_ch):
    return nn.Sequential(
        nn.Conv2d(in_ch, out_ch, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(out_ch),
        nn.ReLU(inplace=True),
    )


class SmallVGG(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.features = nn.Sequential(
            conv_bn_relu(3, 12), nn.MaxPool2d(2),
            conv_bn_relu(12, 24), nn.MaxPool2d(2),
            conv_bn_relu(24, 48), nn.AdaptiveAvgPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(48 * 4, num_classes))
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, 0, 0.01)
                nn.init.zeros_(m.bias)

    def forward(self, image):
        return self.classifier(self.features(image))


class ProductKind(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "macro_f1", "log_loss")

    def fit(self, train):
        kinds = train.select("kind").unique().collect()["kind"]
        self.fitted = {"classes": sorted(kinds.to_list())}

    def encode(self, rows):
        pixels = np.array(rows["photo"].to_list(), dtype=np.uint8).reshape(-1, IMG_SIZE, IMG_SIZE, 3)
        x = (pixels.astype(np.float32) / 255.0 - IMAGENET_MEAN) / IMAGENET_STD
        batch = {"image": torch.from_numpy(x).permute(0, 3, 1, 2).contiguous()}
        if "kind" in rows.columns:
            class_to_idx = {c: i for i, c in enumerate(self.fitted["classes"])}
            batch[LABEL] = torch.tensor([class_to_idx[k] for k in rows["kind"]])
        return batch

    def augment(self, batch, generator):
        image = batch["image"]
        flip = torch.rand(len(image), generator=generator) < 0.5
        image = torch.where(flip[:, None, None, None], image.flip(3), image)
        padded = F.pad(image, (2, 2, 2, 2), mode="replicate")
        top, left = torch.randint(0, 5, (2, len(image)), generator=generator).tolist()
        crops = [p[:, t : t + IMG_SIZE, s : s + IMG_SIZE] for p, t, s in zip(padded, top, left)]
        return {**batch, "image": torch.stack(crops)}

    def build_model(self):
        return SmallVGG(len(self.fitted["classes"]))

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], label_smoothing=0.1, reduction="none")

    def expected_initial_loss(self):
        return float(np.log(len(self.fitted["classes"])))

    @property
    def prediction_names(self):
        return self.fitted["classes"]
