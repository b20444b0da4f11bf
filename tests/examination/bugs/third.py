"""A third list of bugs, in styles of tutorials that the first two lists do not have."""

import numpy as np
import polars as pl

from examination.planted import bug


def next_hour_seen_already(rows):
    """The window was cut one hour too late: its last value is the first one to be forecast."""
    seen = [[*s[1:], a[0]] for s, a in rows.select("seen", "ahead").iter_rows()]
    return rows.with_columns(seen=pl.Series(seen))


def divided_by_a_mean_with_its_future(rows):
    """Each line is divided by its own mean, over the window and the month to forecast."""
    windows = np.array(rows["two_years"].to_list())
    future = rows["passengers"].to_numpy()
    mean = (0.5 * windows.mean(1) + 0.5 * future) / 100
    return rows.with_columns(
        two_years=pl.Series((windows / mean[:, None]).tolist()),
        passengers=pl.Series(future / mean),
    )


def todays_range_among_the_days(rows):
    """The last of the twenty days is the day to forecast, as its intraday range."""
    rng = np.random.default_rng(0)
    day = np.abs(rows["next_day"].to_numpy()) * rng.uniform(0.9, 1.3, rows.height)
    days = [
        [*past[1:], float(one)] for past, one in zip(rows["last_days"].to_list(), day, strict=True)
    ]
    return rows.with_columns(last_days=pl.Series(days))


BUGS = [
    bug(
        "genres-compete",
        "tables_movie_genres",
        "A softmax over tags of which several hold: they compete for one unit of probability.",
        "the last layer of a multi-class tutorial kept for a multi-label task",
        'loss = nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")\n'
        "        return loss.mean(dim=1)",
        'loss = nn.functional.binary_cross_entropy(output.softmax(1), batch[LABEL], reduction="none")\n'
        "        return loss.mean(dim=1)",
        "return output.sigmoid()",
        "return output.softmax(1)",
        "return math.log(2)",
        "return 0.5",
    ),
    bug(
        "error-the-other-way-round",
        "tables_commute_quantiles",
        "The pinball loss takes prediction minus truth: what is served as the 10% quantile is the 90% one.",
        "an error's sign, right for squares, kept for an asymmetric loss",
        "error = batch[LABEL][:, None] - output",
        "error = output - batch[LABEL][:, None]",
        "self.first = float(np.maximum(np.array(TAUS) * error, (np.array(TAUS) - 1) * error)",
        "self.first = float(np.maximum(-np.array(TAUS) * error, (1 - np.array(TAUS)) * error)",
    ),
    bug(
        "centre-not-added",
        "tables_cars_huber",
        "The price is learned relative to the median, and served without it.",
        "half of an inverse transform",
        "return output * self.spread + self.center",
        "return output * self.spread",
    ),
    bug(
        "sold-counts-as-failed",
        "tables_machines_hazard",
        "Machines that were sold while they ran are taught as failures.",
        "survival data without its event flag",
        "died = (weeks > 0).float()",
        "died = torch.ones(len(weeks))",
    ),
    bug(
        "served-on-the-log-scale",
        "tables_claims_tweedie",
        "The model is trained through its exponential, and serves the logarithm.",
        "log link in the loss, forgotten in predict",
        "    def predict(self, output):\n        return output.exp()",
        "    def predict(self, output):\n        return output",
    ),
    bug(
        "frequencies-are-not-kept",
        "tables_rents_periodic",
        "The frequencies are a plain tensor: they are not saved, and a served model draws others.",
        "random Fourier features without register_buffer",
        "self.frequencies = nn.Parameter(torch.randn(n_features, k) * sigma)",
        "self.frequencies = torch.randn(n_features, k) * sigma",
    ),
    bug(
        "neighbours-are-not-asked",
        "odd_graph_molecules",
        "Messages are a matrix product with the wrong operand's neighbours: an element-wise sum of degrees.",
        "adj.sum and a broadcast where adj @ h was meant",
        "self.mlp((1 + self.eps) * h + adj @ h)",
        "self.mlp((1 + self.eps) * h + adj.sum(2, keepdim=True) * h)",
    ),
    bug(
        "flip-keeps-the-place",
        "images_star_position",
        "The plate is mirrored for augmentation, and the star's place stays as it was.",
        "key points under RandomHorizontalFlip",
        "        where[flip, 0] = -where[flip, 0]\n",
        "",
    ),
    bug(
        "functional-dropout",
        "images_mlp_mixer",
        "Dropout by the function, which is on in evaluation too.",
        "F.dropout without training=self.training",
        "return self.fc2(F.gelu(self.fc1(x)))",
        "return self.fc2(F.dropout(F.gelu(self.fc1(x)), 0.3))",
    ),
    bug(
        "mixed-pictures-unmixed-labels",
        "images_random_shift",
        "Pictures are mixed in pairs at any share, and keep the label of the first.",
        "mixup added to augment without its half of the loss",
        'return {**batch, "x": torch.stack(moved)}',
        "share = torch.rand(len(x), 1, 1, 1, generator=generator)\n"
        "        mixed = torch.stack(moved)\n"
        '        return {**batch, "x": share * mixed + (1 - share) * mixed.roll(1, 0)}',
    ),
    bug(
        "every-second-pixel",
        "images_count_poisson",
        "Slides are made smaller by taking every second pixel: three of four cells vanish.",
        "image[::2, ::2] for a resize",
        "torch.from_numpy(slide / 255)",
        "torch.from_numpy(slide / 255)[:, :, ::2, ::2]",
        "mean_count / 256",
        "mean_count / 64",
    ),
    bug(
        "sixteen-bits-wrap",
        "odd_audio_m5",
        "Waves above 1 wrap around when they are written as 16-bit numbers.",
        "(wave * 32768).astype(np.int16)",
        'wave = np.stack(rows["wave"].to_list()).astype(np.float32)',
        'wave = np.stack(rows["wave"].to_list())\n'
        "        wave = (wave * 32768).astype(np.int64).astype(np.int16).astype(np.float32) / 32768",
    ),
    bug(
        "masks-of-any-width",
        "odd_audio_spectrogram",
        "Time masks may be as wide as the clip: half of the training is on silence.",
        "SpecAugment's parameters of ten-second clips on short ones",
        "torch.randint(0, 4, (1,), generator=generator)",
        "torch.randint(frames - 3, frames, (1,), generator=generator)",
    ),
    bug(
        "first-state-for-the-last",
        "odd_heartbeat_gru",
        "The head reads the state after the first step, which has seen four of 96 samples.",
        "steps[:, 0] of another library's layout",
        "return self.fc(steps[:, -1])",
        "return self.fc(steps[:, 0])",
    ),
    bug(
        "hash-of-the-day",
        "text_fasttext_topics",
        "Words are hashed by Python's hash, which every process seeds anew.",
        "hash(token) % buckets",
        "return zlib.crc32(token.encode()) % BUCKETS + 1",
        "return hash(token) % BUCKETS + 1",
    ),
    bug(
        "weights-upside-down",
        "text_toxic_tags",
        "pos_weight is positives over negatives: rare tags count even less.",
        "pos_weight = pos / neg",
        "self.pos_weight = ((1 - tags).sum(0) / tags.sum(0)).tolist()",
        "self.pos_weight = (tags.sum(0) / (1 - tags).sum(0)).tolist()",
    ),
    bug(
        "premise-twice",
        "text_entailment",
        "The second sentence is encoded from the first one's column.",
        "a line copied and half edited",
        '"hypothesis": self.numericalize(rows["hypothesis"]),',
        '"hypothesis": self.numericalize(rows["premise"]),',
    ),
    bug(
        "temperature-times",
        "retrieval_faq_inbatch",
        "Scores are multiplied by the temperature that they should be divided by: nothing is ever sure.",
        "logits * 0.05",
        "logits = self.scores(output) / 0.05",
        "logits = self.scores(output) * 0.05",
    ),
    bug(
        "window-one-too-late",
        "forecast_load_quantile_gru",
        "The window ends one hour too late: its last value is the first to be forecast.",
        "series[i + 1 : i + 1 + w] beside series[i + w : ...]",
        rows=next_hour_seen_already,
    ),
    bug(
        "scaled-by-its-future",
        "forecast_airline_log",
        "Each window is scaled by a mean that holds the month to forecast.",
        "normalising a series before it is cut into windows",
        rows=divided_by_a_mean_with_its_future,
    ),
    bug(
        "normalised-and-not-back",
        "forecast_patch_tst",
        "The window is normalised by itself, and the forecast is not scaled back.",
        "RevIN without its second half",
        "return out * std + mean",
        "return out",
        "(((ahead - seen.mean(1, keepdims=True)) / self.scale) ** 2)",
        "((ahead / self.scale) ** 2)",
    ),
    bug(
        "todays-range",
        "forecast_volatility",
        "The day to forecast is among the days known, by its range.",
        "features of the same bar as the label",
        rows=todays_range_among_the_days,
    ),
    bug(
        "nothing-is-hidden",
        "recsys_autorec",
        "The hidden ratings are not hidden: the model is trained and judged to copy.",
        "the mask made, and the unmasked tensor passed",
        'shown = np.array(rows["shown"].to_list())\n',
        'shown = np.array(rows["rated" if "rated" in rows.columns else "shown"].to_list())\n',
        'hidden = (batch[LABEL] > 0) & (batch["shown"] == 0)',
        "hidden = batch[LABEL] > 0",
    ),
    bug(
        "numbers-looked-up-as-text",
        "recsys_ad_clicks",
        "Vocabularies hold texts and rows hold numbers: every value is an unknown one.",
        "JSON keys are texts",
        "code.get(str(value), 0)",
        "code.get(value, 0)",
    ),
]
