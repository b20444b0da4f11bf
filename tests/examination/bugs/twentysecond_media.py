"""A twenty-second list of bugs: ordinary slips in texts, pictures and searches."""

import io

import numpy as np
import polars as pl
from PIL import Image

from examination.planted import bug


def masks_of_another_datum(rows):
    """Masks were drawn on a map whose datum is three pixels off, in both directions."""

    def moved(png):
        array = np.roll(np.asarray(Image.open(io.BytesIO(png))), (3, 3), axis=(0, 1))
        buffer = io.BytesIO()
        Image.fromarray(array).save(buffer, format="PNG")
        return buffer.getvalue()

    return rows.with_columns(panels=pl.Series([moved(png) for png in rows["panels"]]))


def joints_by_row_and_column(rows):
    """Two of five cameras were annotated in a tool that writes row and column, not x and y."""
    swapped = pl.concat_list([pl.col("joints").list.get(k) for k in (1, 0, 3, 2, 5, 4)])
    by_row = pl.col("camera").is_in(["K1", "K3"])
    return rows.with_columns(joints=pl.when(by_row).then(swapped).otherwise(pl.col("joints")))


BUGS = [
    bug(
        "channels-by-reshape",
        "images_coin_kinds",
        "Pixels [H, W, C] are read as [C, H, W] by a reshape, which mixes them. "
        "Accuracy 0.81 in place of 0.95.",
        "reshape in place of transpose",
        "torch.from_numpy(photos).permute(0, 3, 1, 2).contiguous()",
        "torch.from_numpy(photos).reshape(-1, 3, SIDE, SIDE)",
    ),
    bug(
        "batch-turned-over",
        "images_coin_kinds",
        "The augmentation mirrors the batch's order in place of the photos: labels stay. "
        "Accuracy 0.74 in place of 0.95.",
        "flip with the wrong dimension",
        "x = x.flip(3)",
        "x = x.flip(0)",
    ),
    bug(
        "photos-of-a-coin-on-both-sides",
        "images_coin_kinds",
        "The split is by photo, and the same coin is in training and test. "
        "Log loss 0.11 offline, 0.16 for new coins.",
        "random splits of repeated photos",
        'group = "coin"\nids = ["row_id"]\n\n[split]\nmethod = "group"',
        'ids = ["row_id", "coin"]',
    ),
    bug(
        "statistics-of-the-batch-when-served",
        "images_coin_kinds",
        "Batch norm keeps no running statistics and uses those of the batch when serving, too. "
        "Accuracy 0.24 in place of 0.95, photos served one by one.",
        "track_running_stats=False",
        "self.bn1 = nn.BatchNorm2d(o)",
        "self.bn1 = nn.BatchNorm2d(o, track_running_stats=False)",
        "self.bn2 = nn.BatchNorm2d(o)",
        "self.bn2 = nn.BatchNorm2d(o, track_running_stats=False)",
    ),
    bug(
        "mask-not-mirrored",
        "images_roof_panels",
        "Pictures are mirrored, and masks stay as they were. IoU 0.83 in place of 0.92.",
        "augmentations of pictures alone",
        "picture, mask = picture.flip(3), mask.flip(2)",
        "picture = picture.flip(3)",
        "picture, mask = picture.flip(2), mask.flip(1)",
        "picture = picture.flip(2)",
    ),
    bug(
        "dice-maximised-as-a-loss",
        "images_roof_panels",
        "The Dice coefficient itself is added to the loss, not one minus it. "
        "IoU 0 in place of 0.92.",
        "signs of Dice losses",
        "return bce + 1 - dice",
        "return bce + dice",
    ),
    bug(
        "masks-three-pixels-off",
        "images_roof_panels",
        "Masks are three pixels to the right and below of the panels. IoU 0.49 in place of 0.92.",
        "map data in two reference systems",
        rows=masks_of_another_datum,
    ),
    bug(
        "row-and-column-for-x-and-y",
        "images_crane_joints",
        "Two cameras' labels are row and column, the others' x and y. "
        "Mean error 2.5 pixels in place of 1.3.",
        "annotation tools with other conventions",
        rows=joints_by_row_and_column,
    ),
    bug(
        "backbone-left-frozen",
        "images_crane_joints",
        "The backbone is frozen, though it starts from random weights. "
        "Mean error 2.5 pixels in place of 1.3.",
        "requires_grad = False of a fine-tuning recipe",
        "    def forward(self, picture):\n        return self.head",
        "        for parameter in self.backbone.parameters():\n"
        "            parameter.requires_grad = False\n\n"
        "    def forward(self, picture):\n        return self.head",
    ),
    bug(
        "subtracted-in-eight-bits",
        "images_crane_joints",
        "The mean is subtracted before the conversion, and dark pixels wrap around to bright ones. "
        "Mean error 2.7 pixels in place of 1.3.",
        "arithmetic on uint8",
        "(pixels.astype(np.float32) - 128) / 64",
        "(pixels - np.uint8(128)).astype(np.float32) / 64",
    ),
]
