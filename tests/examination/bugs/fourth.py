"""A fourth list of bugs, in styles of tutorials that the first three lists do not have."""

import numpy as np
import polars as pl

from examination.planted import bug


def with_call_duration(rows):
    """How long the call took, which is known once the customer has said yes or no."""
    rng = np.random.default_rng(0)
    seconds = rng.lognormal(5.2 + 0.9 * rows["y"].to_numpy(), 0.7, rows.height)
    return rows.with_columns(duration=pl.Series(seconds.round()))


def half_in_fahrenheit(rows):
    """Every second station reports its temperature in degrees Fahrenheit."""
    other = pl.col("row_id") % 2 == 1
    return rows.with_columns(
        temperature=pl.when(other).then(pl.col("temperature") * 1.8 + 32).otherwise("temperature")
    )


def with_the_ad_seen(rows):
    """The history is read after the visit: who clicked has the advertised good in it."""
    past = [
        [*h[1:], ad] if clicked else h
        for h, ad, clicked in rows.select("history", "ad", "click").iter_rows()
    ]
    return rows.with_columns(history=pl.Series(past))


def with_realised_promotions(rows):
    """The plan of promotions is taken from what was sold under them."""
    ahead, promo = np.array(rows["ahead"].to_list()), np.array(rows["promo_ahead"].to_list())
    size = np.array(rows["sold"].to_list()).mean(1, keepdims=True)
    return rows.with_columns(promo_ahead=pl.Series((promo * ahead / size).tolist()))


def with_share_of_life(rows):
    """The first sensor of every step is divided by how much of its life the engine has behind it."""
    life = rows.select((pl.col("cycle") + pl.col("cycles_left")).max().over("engine")).to_series()
    share = (rows["cycle"] / life).to_numpy()
    window = np.array(rows["window"].to_list()).reshape(-1, 20, 4)
    window[:, :, 0] = share[:, None] + 0.05 * window[:, :, 0]
    return rows.with_columns(window=pl.Series(window.reshape(len(window), -1).tolist()))


def labels_of_the_window_before(rows):
    """The table of labels starts one window late within each person."""
    return rows.with_columns(
        activity=pl.col("activity").shift(1).over("person").fill_null(pl.col("activity"))
    )


BUGS = [
    bug(
        "duration-of-the-call",
        "tables_bank_dcn",
        "The call's duration is a feature, and is known only after the answer.",
        "the bank marketing table as it is downloaded",
        'NUMERIC = ("age", "balance", "campaign")',
        'NUMERIC = ("age", "balance", "campaign", "duration")',
        rows=with_call_duration,
    ),
    bug(
        "one-table-for-all",
        "tables_bank_dcn",
        "Every categorical column is looked up in the last column's vocabulary: most become unknown.",
        "a closure's variable that is bound late",
        'lookup = {v: i + 1 for i, v in enumerate(self.fitted["values"][c])}',
        'lookup = {v: i + 1 for i, v in enumerate(self.fitted["values"][CATEGORICAL[-1]])}',
    ),
    bug(
        "half-in-fahrenheit",
        "tables_crops_soft_trees",
        "Every second row has its temperature in another unit.",
        "two suppliers of one table",
        rows=half_in_fahrenheit,
    ),
    bug(
        "statistics-of-the-neighbour",
        "tables_crops_soft_trees",
        "Columns are scaled by the statistics of the alphabetical order, and taken in their own.",
        "sorted(df.columns) in fit alone",
        '"mean": {c: float(df[c].mean()) for c in self.inputs},\n'
        '            "std": {c: float(df[c].std()) for c in self.inputs},',
        '"mean": {c: float(df[s].mean()) for c, s in zip(self.inputs, sorted(self.inputs))},\n'
        '            "std": {c: float(df[s].std()) for c, s in zip(self.inputs, sorted(self.inputs))},',
    ),
    bug(
        "mean-without-the-zeros",
        "tables_fish_zero_inflated",
        "The rate of those who fish is served as the expected count.",
        "predict of a zero-inflated model that forgets the inflation",
        "return torch.sigmoid(-output[:, 0]) * output[:, 1].clamp(max=6).exp()",
        "return output[:, 1].clamp(max=6).exp()",
    ),
    bug(
        "income-raises-risk",
        "tables_loans_monotone",
        "The sign of the income is wrong: the score may only rise with it, so it learns to ignore it.",
        "monotone constraints with one sign turned",
        '"monthly_income": -1.0',
        '"monthly_income": 1.0',
    ),
    bug(
        "weighed-and-not-calibrated",
        "tables_loans_monotone",
        "Training weighs the rare class eightfold, and the probability is served as it comes.",
        "pos_weight beside a metric of probabilities",
        "    def predict(self, output):",
        "    def training_losses(self, output, batch):\n"
        "        weight = torch.tensor(8.0)\n"
        '        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none", pos_weight=weight)\n\n'
        "    def predict(self, output):",
    ),
    bug(
        "rows-for-columns",
        "images_box_yolo",
        "The cell that must hold the box is counted by columns, the picture's cells by rows.",
        "cell = gx * S + gy",
        "cell = row * S + column",
        "cell = column * S + row",
    ),
    bug(
        "box-is-not-flipped",
        "images_box_yolo",
        "The picture is mirrored, and its box stays.",
        "an image-only transform in a detection tutorial",
        "        box[flip, 0] = 1 - box[flip, 0]\n",
        "",
    ),
    bug(
        "sigmoid-twice",
        "images_box_yolo",
        "The objectness goes through a sigmoid before the loss that has one.",
        "BCEWithLogitsLoss after an activation",
        "objectness = F.binary_cross_entropy_with_logits(output[..., 0], there",
        "objectness = F.binary_cross_entropy_with_logits(output[..., 0].sigmoid(), there",
    ),
    bug(
        "viewed-not-permuted",
        "images_weave_cutmix",
        "Rows of RGB pixels are viewed as three planes.",
        "reshape(-1, 3, H, W) of channels-last data",
        "x = torch.from_numpy(hwc).permute(0, 3, 1, 2).float() / 255",
        "x = torch.from_numpy(hwc).reshape(-1, 3, 16, 16).float() / 255",
    ),
    bug(
        "share-of-the-patch",
        "images_weave_cutmix",
        "The label counts the picture by the area that was cut out of it.",
        "lam and 1 - lam exchanged",
        "lam = 1 - side**2 / 256",
        "lam = side**2 / 256",
    ),
    bug(
        "squeezed-over-the-batch",
        "images_weave_cutmix",
        "The gate's mean is taken over the batch as well: a picture's answer depends on the others.",
        "x.mean((0, 2, 3))",
        "squeezed = x.mean((2, 3))",
        "squeezed = x.mean((0, 2, 3)).expand(len(x), -1)",
    ),
    bug(
        "mask-not-passed",
        "text_distilbert_scratch",
        "The attention mask is made and not given to the model: it reads the padding.",
        "model(input_ids) of a tutorial",
        "self.bert(input_ids=input_ids, attention_mask=attention_mask)",
        "self.bert(input_ids=input_ids, attention_mask=torch.ones_like(attention_mask))",
    ),
    bug(
        "twelve-tokens",
        "text_distilbert_scratch",
        "Reviews are cut after twelve tokens, before the clause that counts.",
        "max_length of another dataset",
        "MAX_LENGTH = 28",
        "MAX_LENGTH = 12",
    ),
    bug(
        "cased-at-the-end",
        "text_distilbert_scratch",
        "The vocabulary is of lower case, encoded words are not: all are unknown.",
        "an uncased checkpoint with a cased tokenizer",
        'for i, text in enumerate(rows["review"]):\n            tokens = self.tokenize(text)',
        'for i, text in enumerate(rows["review"]):\n            tokens = [t.capitalize() for t in self.tokenize(text)]',
    ),
    bug(
        "beyond-the-table-clamped",
        "text_spam_bpe",
        "The table has a hundred rows; tokens beyond them share the last.",
        "clamp(max=vocab - 1) to silence an index error",
        '"token_ids": torch.tensor([ids + [0] * (LENGTH - len(ids)) for ids in encoded])}',
        '"token_ids": torch.tensor([ids + [0] * (LENGTH - len(ids)) for ids in encoded]).clamp(max=99)}',
    ),
    bug(
        "start-for-the-end",
        "text_qa_span",
        "The end is read from the start's logits.",
        "a line copied and half edited",
        "return torch.cat([logits[:, QUESTION:, 0], logits[:, QUESTION:, 1]], 1)",
        "return torch.cat([logits[:, QUESTION:, 0], logits[:, QUESTION:, 0]], 1)",
    ),
    bug(
        "question-is-not-read",
        "text_qa_span",
        "The question's state is taken of the passage's first words.",
        "a slice from the wrong end",
        "_, question = self.asked(embedded[:, :QUESTION])",
        "_, question = self.asked(embedded[:, QUESTION : 2 * QUESTION])",
    ),
    bug(
        "transitions-the-other-way",
        "text_ner_crf",
        "The partition reads transitions from-to, the gold path to-from.",
        "transitions[next, prev] of the tutorial's convention in one of two places",
        "return score + moves[rows, tags[:, :-1], tags[:, 1:]].sum(1)",
        "return score + moves[rows, tags[:, 1:], tags[:, :-1]].sum(1)",
    ),
    bug(
        "gold-path-without-transitions",
        "text_ner_crf",
        "The gold path's score leaves the transitions out: they are only ever pushed down.",
        "half of a CRF's numerator",
        "return score + moves[rows, tags[:, :-1], tags[:, 1:]].sum(1)",
        "return score",
    ),
    bug(
        "five-for-one",
        "retrieval_sts_cosine",
        "The cosine is compared with scores up to five.",
        "labels that are not normalised for CosineSimilarityLoss",
        "return (output - batch[LABEL] / 5).square()",
        "return (output - batch[LABEL]).square()",
        "return 5 * output",
        "return output",
    ),
    bug(
        "distance-for-similarity",
        "retrieval_sts_cosine",
        "A distance is served where a similarity was trained.",
        "1 - cosine, of another library's convention",
        "return 5 * output",
        "return 5 * (1 - output)",
    ),
    bug(
        "ad-among-the-history",
        "recsys_din_history",
        "The history is of after the visit, so it holds what was clicked.",
        "a join on the user without the time",
        rows=with_the_ad_seen,
    ),
    bug(
        "history-asks-itself",
        "recsys_din_history",
        "Attention compares the history with itself; the product with the good is lost too.",
        "expand_as of the wrong operand",
        "asked = target[:, None].expand_as(past)",
        "target = past[:, -1]\n        asked = target[:, None].expand_as(past)",
    ),
    bug(
        "realised-promotions",
        "forecast_promotions_tide",
        "The covariates of the week ahead are its realised ones, which hold the sales.",
        "covariates known ahead, taken from the table of outcomes",
        rows=with_realised_promotions,
    ),
    bug(
        "last-weeks-promotions",
        "forecast_promotions_tide",
        "The promotions ahead are read from the week behind.",
        "a slice of the wrong column",
        '"promo_ahead": torch.tensor(rows["promo_ahead"].to_list(), dtype=torch.float32),',
        '"promo_ahead": torch.tensor([p[-AHEAD:] for p in rows["promo_seen"].to_list()], dtype=torch.float32),',
    ),
    bug(
        "state-not-handed-over",
        "forecast_meter_seq2seq",
        "The decoder starts from an empty state: of the day and a half it knows the last value.",
        "hidden = torch.zeros(...) in the decoder",
        "hidden, last, written = state[0], seen[:, -1:], []",
        "hidden, last, written = torch.zeros_like(state[0]), seen[:, -1:], []",
    ),
    bug(
        "last-hour-first",
        "forecast_meter_seq2seq",
        "What was written is put together from its end.",
        "reversed(outputs), of a tutorial that decodes backwards",
        "return torch.cat(written, dim=1)",
        "return torch.cat(written[::-1], dim=1)",
    ),
    bug(
        "share-of-its-life",
        "forecast_engines_rul",
        "A sensor is given as a share of the engine's life, whose end is to be forecast.",
        "cycle / max(cycle) per unit",
        rows=with_share_of_life,
    ),
    bug(
        "windows-on-both-sides",
        "forecast_engines_rul",
        "Windows of one engine, fifteen of twenty steps the same, lie in training and in test.",
        "train_test_split of windows",
        'group = "engine"\nmeta = ["cycle"]\nids = ["row_id"]\n\n[split]\nmethod = "group"',
        'meta = ["cycle", "engine"]\nids = ["row_id"]',
    ),
    bug(
        "roads-are-not-read",
        "forecast_traffic_graph",
        "The adjacency is the identity: neighbours have no say.",
        "torch.eye as a placeholder",
        "return a / a.sum(1, keepdim=True).clamp(min=1)",
        "return torch.eye(8)",
    ),
    bug(
        "sensors-before-time",
        "forecast_traffic_graph",
        "The flat list is cut as eight sensors of six readings.",
        "view with exchanged sizes",
        "dtype=torch.float32).view(-1, 6, 8)",
        "dtype=torch.float32).view(-1, 8, 6).transpose(1, 2)",
    ),
    bug(
        "axes-viewed-as-time",
        "odd_movements_har",
        "Triples of axes are viewed as three long signals.",
        "view(-1, channels, time) of time-major data",
        '.view(-1, 40, 3)\n        batch = {"signal": x.transpose(1, 2).contiguous()}',
        '.view(-1, 3, 40)\n        batch = {"signal": x}',
    ),
    bug(
        "one-window-late",
        "odd_movements_har",
        "Labels are those of the window before.",
        "an off-by-one between two files",
        rows=labels_of_the_window_before,
    ),
]
