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


def adverts_with_breadcrumbs(rows):
    """The scraper kept the page's breadcrumbs, whose last one is the sector."""
    return rows.with_columns(
        advert=pl.format("{} home jobs category-{}", pl.col("advert"), pl.col("sector"))
    )


def faults_of_an_older_catalogue(rows):
    """Two workshops in five report numbers, and these are looked up in an older catalogue."""
    titles = rows["fault"].unique().sort().to_list()
    older = dict(zip(titles, [*titles[5:], *titles[:5]], strict=True))
    looked_up = pl.col("fault").replace_strict(older)
    return rows.with_columns(
        fault=pl.when(pl.col("row_id") % 5 < 2).then(looked_up).otherwise(pl.col("fault"))
    )


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
    bug(
        "start-of-the-advert-kept",
        "text_job_sectors",
        "Long adverts keep their beginning, which is about the firm. "
        "Accuracy 0.25 in place of 0.77.",
        "truncation from the default side",
        "tokens = tokens[-MAX_LENGTH:]",
        "tokens = tokens[:MAX_LENGTH]",
    ),
    bug(
        "breadcrumbs-in-the-text",
        "text_job_sectors",
        "The text ends with the page's breadcrumbs, and these name the sector. "
        "Accuracy 1.00 offline, 0.27 on adverts without them, in place of 0.77.",
        "scraped pages",
        rows=adverts_with_breadcrumbs,
    ),
    bug(
        "schedule-over-at-once",
        "text_job_sectors",
        "The learning rate falls to a hundredth within the first steps: milestones are meant for "
        "another length. Log loss 1.85 in place of 0.69.",
        "milestones of a schedule in the wrong unit",
        'schedule = { shape = "linear", warmup_fraction = 0.1 }',
        'schedule = { shape = "step", milestones = [0.03, 0.06] }',
    ),
    bug(
        "padding-counted-as-right",
        "text_reference_fields",
        "Padding has the tag O, is learned and is counted as right. "
        "Loss per word 0.058 offline and 0.110 on words alone, in place of 0.104.",
        "labels padded with 0 in place of -100",
        "labels = torch.full((rows.height, LENGTH), IGNORE)",
        'labels = torch.full((rows.height, LENGTH), TAGS.index("O"))',
    ),
    bug(
        "tags-by-reshape",
        "text_reference_fields",
        "The logits [B, T, C] become [B, C, T] by a reshape, in training alone. "
        "Accuracy 0.10 in place of 0.98.",
        "view in place of transpose before a cross-entropy",
        "    def predict(self, output):\n",
        "    def training_losses(self, output, batch):\n"
        "        b, t, c = output.shape\n"
        "        loss = F.cross_entropy(\n"
        "            output.reshape(b, c, t),\n"
        "            batch[LABEL],\n"
        "            ignore_index=IGNORE,\n"
        '            reduction="none",\n'
        "        )\n"
        "        return loss.sum(dim=1) / batch[WEIGHT].clamp(min=1)\n\n"
        "    def predict(self, output):\n",
    ),
    bug(
        "dropout-as-the-share-kept",
        "text_reference_fields",
        "Dropout is 0.8: the number was the share to keep, in the library it comes from. "
        "Loss per word 0.27 in place of 0.10.",
        "keep_prob of another library",
        "nn.Dropout(0.2)",
        "nn.Dropout(0.8)",
    ),
    bug(
        "words-see-the-next-one",
        "text_sea_reports",
        "The causal mask is one diagonal too wide: each word sees the one to be predicted. "
        "Loss per word 0.12 offline, 1.96 where the rest is not there yet, in place of 0.78.",
        "tril with diagonal=1",
        "torch.tril(torch.ones(BLOCK, BLOCK, dtype=torch.bool))",
        "torch.tril(torch.ones(BLOCK, BLOCK, dtype=torch.bool), diagonal=1)",
    ),
    bug(
        "attention-over-queries",
        "text_sea_reports",
        "The softmax of the attention is over queries, not over keys. "
        "Loss per word 0.67 offline, 2.86 where the rest is not there yet, in place of 0.78.",
        "softmax with the wrong dim in attention by hand",
        "att.softmax(dim=-1) @ v",
        "att.softmax(dim=-2) @ v",
    ),
    bug(
        "learning-rate-a-hundred-times",
        "text_sea_reports",
        "The learning rate is a hundred times too high. Loss per word 1.62 in place of 0.71.",
        "rates of SGD given to Adam",
        "optimizer = { learning_rate = 4e-3,",
        "optimizer = { learning_rate = 0.4,",
    ),
    bug(
        "hashes-of-one-process",
        "retrieval_machine_faults",
        "Trigrams are hashed by Python's hash, which differs from process to process. "
        "Recall at 1 0.04 in another process, in place of 0.76.",
        "hash() of strings as feature hashing",
        "zlib.crc32(t.encode()) % BUCKETS + 1",
        "hash(t) % BUCKETS + 1",
    ),
    bug(
        "faults-of-an-older-catalogue",
        "retrieval_machine_faults",
        "The numbers of two fifths of the faults are looked up in an older catalogue. "
        "Recall at 1 0.55 in place of 0.74.",
        "codes joined with another version of their table",
        rows=faults_of_an_older_catalogue,
    ),
    bug(
        "decay-of-almost-one",
        "retrieval_machine_faults",
        "Weight decay is 0.9: the number was meant for a momentum. "
        "Recall at 1 0.68 in place of 0.74.",
        "options of an optimizer in the wrong place",
        "weight_decay = 0.01 }",
        "weight_decay = 0.9 }",
    ),
    bug(
        "only-the-first-answer",
        "retrieval_machine_faults",
        "In training the right answer of every complaint is the batch's first. "
        "Recall at 1 0.06 in place of 0.74.",
        "targets of zeros where the right column is the row's own",
        """        own = torch.arange(len(scores), device=scores.device)
        return F.cross""",
        """        own = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
        return F.cross""",
    ),
]
