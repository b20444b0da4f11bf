"""A twelfth list of bugs: embeddings, texts, pictures, windows, recommendation and two heads, as public reports have them."""

import numpy as np
import polars as pl

from examination.planted import bug


def takings_of_the_row_below(rows):
    """The file of sales and the file of days were put side by side, one row apart within each store."""
    moved = rows.sort("Store", "Date").with_columns(Sales=pl.col("Sales").shift(-1).over("Store"))
    return moved.drop_nulls("Sales").sort("Date", "Store")


def lost_readings_are_zero(rows):
    """The sensor loses one reading in twelve, and the export writes 0 for it."""
    rng = np.random.default_rng(0)
    readings = np.array(rows["glucose"].to_list())
    readings[rng.random(readings.shape) < 1 / 12] = 0.0
    return rows.with_columns(glucose=pl.Series(readings.tolist()))


def lost_answers_are_zero(rows):
    """Of one label in twenty-five the reading was lost, and 0 was filled in."""
    is_lost = pl.lit(pl.Series(np.random.default_rng(0).random(rows.height) < 0.04))
    answer = pl.when(is_lost).then(0.0).otherwise(pl.col("glucose_in_30min"))
    return rows.with_columns(glucose_in_30min=answer)


BUGS = [
    bug(
        # mape 0.107; 0.099 when healthy, and served with other embeddings
        "embeddings-in-a-plain-list",
        "tables_rossmann_entity",
        "The embeddings are in a Python list: no optimizer and no checkpoint sees them.",
        "a list where nn.ModuleList was meant",
        "nn.ModuleList([nn.Embedding(c, s) for c, s in sizes])",
        "[nn.Embedding(c, s) for c, s in sizes]",
    ),
    bug(
        # mape 0.22 when served; 0.10 when healthy
        "keys-become-text",
        "tables_rossmann_entity",
        "Codes are kept by level in a dictionary: JSON makes texts of its numbers, so every weekday is unknown.",
        "integer keys through JSON",
        "{c: sorted(df[c].unique().to_list()) for c in CATS}",
        "{c: {v: i + 1 for i, v in enumerate(sorted(df[c].unique().to_list()))} for c in CATS}",
        'index = {v: i + 1 for i, v in enumerate(self.fitted["levels"][c])}',
        'index = self.fitted["levels"][c]',
    ),
    bug(
        # mape 0.24 on sales as they were; 0.10 when healthy
        "takings-of-the-row-below",
        "tables_rossmann_entity",
        "Sales are one row off against the days within each store.",
        "two files put side by side by pd.concat(axis=1)",
        rows=takings_of_the_row_below,
    ),
    bug(
        # average precision 0.39; 0.91 when healthy
        "not-sorted-back",
        "text_tickets_gru",
        "Messages are sorted by length for the packing, and the states are not sorted back.",
        "pack_padded_sequence before enforce_sorted=False",
        "        packed = pack_padded_sequence(embedded, text_lengths.cpu().clamp(min=1), batch_first=True, enforce_sorted=False)",
        "        order = text_lengths.argsort(descending=True)\n"
        "        packed = pack_padded_sequence(embedded[order], text_lengths[order].cpu().clamp(min=1), batch_first=True)",
    ),
    bug(
        # average precision 0.69; 0.91 when healthy
        "rate-of-adam-for-sgd",
        "text_tickets_gru",
        "The optimizer was changed to SGD, and its learning rate remained Adam's.",
        "one option changed of two that belong together",
        "optimizer = { learning_rate = 4e-3 }",
        'optimizer = { name = "sgd", learning_rate = 4e-3 }',
    ),
    bug(
        # average precision 0.47; 0.91 when healthy
        "vocabulary-of-letters",
        "text_tickets_gru",
        "The set of words is updated by a text, which adds its letters: words are unknown.",
        "set.update(text)",
        "words.update(message.split())",
        "words.update(message)",
    ),
    bug(
        # mae 1.85; 0.34 when healthy
        "clamped-as-if-from-zero",
        "images_seedlings_thresholds",
        "The augmentation clamps to 0..1, while pictures are in -1..1: the dark half is lost in training alone.",
        "an augmentation written for another scale",
        "tray = ((tray + 1) * gain - 1).clamp(-1, 1)",
        "tray = ((tray + 1) * gain - 1).clamp(0, 1)",
    ),
    bug(
        # mae 1.35; 0.34 when healthy
        "momentum-of-keras",
        "images_seedlings_thresholds",
        "The momentum of the running statistics is what another framework subtracts from one.",
        "BatchNormalization(momentum=0.999), ported as 1 - momentum",
        "nn.BatchNorm2d(o)",
        "nn.BatchNorm2d(o, momentum=0.001)",
    ),
    bug(
        # mae 0.95; 0.34 when healthy
        "trunk-without-gradient",
        "images_seedlings_thresholds",
        "The trunk runs without gradients, as with a pretrained one; this one starts at random.",
        "a recipe of fine-tuning on a network that was never trained",
        "        h = self.trunk(tray)\n",
        "        with torch.no_grad():\n            h = self.trunk(tray)\n",
    ),
    bug(
        # mae 4.7; 3.9 when healthy
        "lost-readings-are-zero",
        "forecast_glucose_gru",
        "A reading that was lost is 0, also the last one, to which the change is added.",
        "fillna(0)",
        rows=lost_readings_are_zero,
    ),
    bug(
        # mae 7.2 on labels that were read; 3.9 when healthy
        "lost-answers-are-zero",
        "forecast_glucose_gru",
        "Labels whose reading was lost are 0.",
        "fillna(0) on the whole frame, labels included",
        rows=lost_answers_are_zero,
    ),
    bug(
        # mae 98; 24 when healthy
        "never-below-nothing",
        "forecast_load_lstm",
        "Loads are never negative, so the output is clamped at 0 before it is scaled back: no forecast is below the mean.",
        "a clamp on the wrong side of the inverse transform",
        "return output * std + mean",
        "return output.clamp(min=0) * std + mean",
    ),
    bug(
        # mae 37; 24 when healthy
        "each-window-its-own-scale",
        "forecast_load_lstm",
        "Each window is standardised by itself, and the label by the whole series: the level is lost.",
        "instance normalisation that is not undone",
        "        mean, std = self.fitted[name]\n        return (np.asarray(values, dtype=np.float64) - mean) / std",
        "        values = np.asarray(values, dtype=np.float64)\n"
        "        return (values - values.mean(1, keepdims=True)) / values.std(1, keepdims=True)",
    ),
    bug(
        # AUC 0.51; 0.55 when healthy
        "codes-sorted-as-text",
        "recsys_din_history",
        "The advertised good is coded by its rank among ids sorted as text; the history keeps the ids.",
        "LabelEncoder on a column of strings, one of two columns that share a table",
        '"ad": torch.tensor(rows["ad"].to_list())}',
        '"ad": torch.tensor([1 + sorted(map(str, range(1, GOODS))).index(str(ad)) for ad in rows["ad"]])}',
    ),
    bug(
        # AUC 0.52; 0.55 when healthy
        "attention-detached",
        "recsys_din_history",
        "The attention's weights are detached: it stays as it began.",
        "a detach for a plot that remained",
        "interest = (weight[..., None] * past).sum(1)",
        "interest = (weight.detach()[..., None] * past).sum(1)",
    ),
    bug(
        # intents right 0.84; 1.00 when healthy
        "intent-next-to-nothing",
        "text_commands_joint",
        "The intent's loss weighs a thousandth: its head hardly learns.",
        "a loss weight from a model whose losses were sums",
        "return intent_loss + slot_loss",
        "return 1e-3 * intent_loss + slot_loss",
    ),
    bug(
        # shows 1.00 of slots right, is 0.25; 0.98 when healthy
        "outside-is-ignored",
        "text_commands_joint",
        "Words outside of any slot are ignored by loss and metric: served, every word gets a slot.",
        "ignore_index for the class O",
        "slots = [slot_to_id.get(s, IGNORE) for s in target[1:]][:MAX_LEN]",
        'slots = [slot_to_id.get(s, IGNORE) if s != "O" else IGNORE for s in target[1:]][:MAX_LEN]',
    ),
    bug(
        # 0.07 of slots right; 0.98 when healthy
        "view-for-transpose",
        "text_commands_joint",
        "The slots' scores are reshaped to classes first where they must be transposed.",
        "cross_entropy wants [B, C, T]",
        "slot_logits.transpose(1, 2)",
        "slot_logits.reshape(len(slots), -1, MAX_LEN)",
    ),
    bug(
        # balanced accuracy 0.943, log loss 0.146; 0.960 and 0.129 when healthy, of 210 rows
        "weights-in-the-order-of-counting",
        "images_welds_frozen_filters",
        "Class weights are listed from the most frequent on, classes by the alphabet.",
        "value_counts() beside sorted(classes)",
        'dict(train.collect()["finding"].value_counts().iter_rows())',
        'dict(train.collect()["finding"].value_counts(sort=True).iter_rows())',
        "[counts[c] for c in sorted(counts)]",
        "list(counts.values())",
    ),
    bug(
        # balanced accuracy 0.49; 0.96 when healthy
        "wraps-below-the-mean",
        "images_welds_frozen_filters",
        "Pixels are bytes when the mean is subtracted: what is darker wraps around to bright.",
        "arithmetic in uint8",
        'torch.tensor(rows["xray"].to_list(), dtype=torch.float32)',
        'torch.tensor(rows["xray"].to_list(), dtype=torch.uint8)',
    ),
    bug(
        # AUC 0.888; 0.898 when healthy
        "mask-of-floats",
        "text_transformer_encoder",
        "The mask is made of floats, which are added to the scores: padding is read, and preferred.",
        "src_key_padding_mask is boolean or additive",
        "src_key_padding_mask=padding)",
        "src_key_padding_mask=padding.float())",
    ),
]
