"""A sixth list of bugs: mistakes of less usual tasks, and those that post-mortems tell of."""

import numpy as np
import polars as pl

from examination.planted import bug


def tags_that_count_themselves(rows):
    """A self-loop in the graph: each paper is among the papers whose fields are counted."""
    fields = ["biology", "physics", "law", "music"]
    counts = [
        [number + (k == fields.index(own)) for k, number in enumerate(each)]
        for each, own in rows.select("cited_fields", "field").iter_rows()
    ]
    return rows.with_columns(cited_fields=pl.Series(counts, dtype=pl.List(pl.Int64)))


def gaps_interpolated(rows):
    """The sensor drops out for half an hour, and a linear interpolation had filled the whole series."""
    rng = np.random.default_rng(0)
    windows = []
    for window, after in rows.select("glucose", "glucose_in_30min").iter_rows():
        if rng.random() < 0.5:
            windows.append([*window[:-6], *np.linspace(window[-7], after, 14)[1:7].round(1)])
        else:
            windows.append(window)
    return rows.with_columns(glucose=pl.Series(windows, dtype=pl.List(pl.Float64)))


def some_in_millimoles(rows):
    """A third of the patients have a device that reports mmol/l."""
    is_other = pl.col("patient").str.slice(1).cast(int) % 3 == 0
    smaller = (pl.col("glucose") / 18).list.eval(pl.element().round(1))
    return rows.with_columns(glucose=pl.when(is_other).then(smaller).otherwise(pl.col("glucose")))


def half_sorted(rows):
    """The labels came in another order: a join lost the order of half of the buildings."""
    use = rows["kwh_per_m2"].to_numpy().copy()
    half = np.arange(rows.height) >= rows.height // 2
    use[half] = np.sort(use[half])
    return rows.with_columns(kwh_per_m2=pl.Series(use))


BUGS = [
    bug(
        "offset-forgotten",
        "tables_ward_infections",
        "The rates are not multiplied by the bed days: a ward of 40 and one of 3,000 count alike.",
        "offset() lost on the way from R",
        "return eta + offset",
        "return eta",
    ),
    bug(
        "offset-added-twice",
        "tables_ward_infections",
        "The exposure is in the model's output already, and the loss adds it once more.",
        "an offset in forward and in the loss",
        "F.poisson_nll_loss(output, batch[LABEL]",
        'F.poisson_nll_loss(output + batch["offset"], batch[LABEL]',
    ),
    bug(
        "column-against-row",
        "tables_energy_missing",
        "A column of predictions meets a row of targets: every pair is compared, and all learn the mean.",
        "broadcasting of (N, 1) with (N,)",
        "target.unsqueeze(1), reduction",
        "target, reduction",
    ),
    bug(
        "minus-999",
        "tables_energy_missing",
        "What is unknown stays -999 and is scaled like a number: other values lie within a hair.",
        "a sentinel that trees do not mind",
        'df[c].fill_null(f["median"][c])',
        "df[c].fill_null(-999)",
    ),
    bug(
        "other-half-sorted",
        "tables_energy_missing",
        "Half of the labels were sorted apart from their rows.",
        "a join that does not keep the order",
        rows=half_sorted,
    ),
    bug(
        "still-in-deviations",
        "tables_energy_missing",
        "Predictions are left in standard deviations while the metric reads kWh.",
        "inverse_transform forgotten",
        'return output.squeeze(1) * self.fitted["target_std"] + self.fitted["target_mean"]',
        "return output.squeeze(1)",
    ),
    bug(
        "hash-of-the-process",
        "tables_chargebacks_hashed",
        "Shops are hashed by Python's `hash`, which differs in every process.",
        "the hashing trick with hash()",
        "return zlib.crc32(name.encode()) % N_BUCKETS",
        "return hash(name) % N_BUCKETS",
    ),
    bug(
        "codes-of-the-batch",
        "tables_chargebacks_hashed",
        "Shops are numbered in the order in which they come in the rows at hand.",
        "pd.factorize at encoding",
        'torch.tensor([bucket(m) for m in rows["merchant"]])',
        'torch.tensor(rows["merchant"].to_pandas().factorize()[0].copy()) % N_BUCKETS',
    ),
    bug(
        "mean-of-its-own-label",
        "tables_chargebacks_hashed",
        "A card's mean label stands for the amount: most cards have one row, whose label it is.",
        "target encoding without folds",
        '            "prior": float(df["disputed"].mean()),\n',
        '            "prior": float(df["disputed"].mean()),\n'
        '            "card_rate": dict(df.group_by("card").agg(pl.col("disputed").mean()).iter_rows()),\n',
        "import numpy as np\n",
        "import numpy as np\nimport polars as pl\n",
        "        return np.stack([amount, np.sin(angle), np.cos(angle)], axis=1)",
        '        rate = [self.fitted["card_rate"].get(c, self.fitted["prior"]) for c in rows["card"]]\n'
        "        return np.stack([amount, 6 * np.array(rate), np.cos(angle)], axis=1)",
    ),
    bug(
        "mirror-keeps-the-eyes",
        "images_face_keypoints",
        "A mirrored face keeps its left eye as the left one: the two become one place between them.",
        "a flip without the swap of left and right",
        "        mirrored = mirrored[:, [RIGHT_EYE, LEFT_EYE, MOUTH]]\n",
        "",
    ),
    bug(
        "picture-mirrored-alone",
        "images_face_keypoints",
        "The picture is mirrored, its points stay.",
        "image augmentation that does not know of targets",
        "LABEL: torch.where(mirror[:, None, None], mirrored, points)}",
        "LABEL: points}",
    ),
    bug(
        "rows-for-columns",
        "images_face_keypoints",
        "The soft argmax gives y before x, points are x before y.",
        "(row, column) against (x, y)",
        "torch.stack((x, y), dim=-1)",
        "torch.stack((y, x), dim=-1)",
    ),
    bug(
        "softmax-over-the-points",
        "images_face_keypoints",
        "The softmax runs over the three heatmaps instead of over the places.",
        "softmax(dim=1) out of habit",
        "p = heatmaps.flatten(2).softmax(dim=2)",
        "p = heatmaps.flatten(2).softmax(dim=1)",
    ),
    bug(
        "softmax-over-the-rows",
        "images_street_classes",
        "Classes are normalised along the picture's height.",
        "a dim counted in another layout",
        "each = F.cross_entropy(output, target, weight=weight,",
        "each = F.nll_loss(F.log_softmax(output, dim=2), target, weight=weight,",
    ),
    bug(
        "rare-class-weighs-least",
        "images_street_classes",
        "The class weights are the frequencies, not their inverse.",
        "1 / forgotten",
        "weight = 1 / frequency.sqrt()",
        "weight = frequency**2",
    ),
    bug(
        "mask-turned",
        "images_street_classes",
        "Masks are read with height and width exchanged and turned afterwards.",
        "(W, H) from PIL against (H, W)",
        ".view(-1, H, W)\n        return batch",
        ".view(-1, W, H).transpose(1, 2).contiguous()\n        return batch",
    ),
    bug(
        "channels-viewed-not-permuted",
        "images_street_classes",
        "HWC pixels are viewed as CHW: each channel is a third of the picture with its colours mixed.",
        "view for permute",
        "pixels.permute(0, 3, 1, 2).contiguous()",
        "pixels.reshape(-1, 3, H, W)",
    ),
    bug(
        "one-means-different",
        "retrieval_signature_contrastive",
        "The loss takes 1 for different, as the paper does; labels say 1 for the same hand.",
        "the paper's Y and the data's",
        "return same * output.pow(2) + (1 - same) * F.relu",
        "return (1 - same) * output.pow(2) + same * F.relu",
    ),
    bug(
        "normalised-over-the-batch",
        "retrieval_signature_contrastive",
        "Each feature is normalised over the rows of the batch instead of each vector.",
        "F.normalize(z, dim=0)",
        "return F.normalize(z, dim=1)",
        "return F.normalize(z, dim=0)",
    ),
    bug(
        "pads-are-right-answers",
        "text_commands_joint",
        "Padded positions carry the slot O: they are learned, and counted as right.",
        "labels padded by a real class",
        "labels = np.full((len(rows), 1 + MAX_LEN), IGNORE)",
        'labels = np.full((len(rows), 1 + MAX_LEN), slot_to_id["O"])',
    ),
    bug(
        "dropout-never-ends",
        "text_commands_joint",
        "F.dropout is called without `training`: a third of the inputs is dropped at prediction, too.",
        "F.dropout's default is training=True",
        "x = F.dropout(self.embed(tokens), self.p, self.training)",
        "x = F.dropout(self.embed(tokens), self.p)",
        "self.slot_head(F.dropout(h, self.p, self.training))",
        "self.slot_head(F.dropout(h, self.p))",
    ),
    bug(
        "slots-numbered-by-the-rows",
        "text_commands_joint",
        "Slots are numbered by those that occur in the rows at hand.",
        "LabelEncoder().fit_transform in the collate function",
        'slot_to_id = {w: i for i, w in enumerate(self.fitted["slots"])}',
        'slot_to_id = {w: i for i, w in enumerate(dict.fromkeys(w for t in rows["target"].to_list() for w in t[1:]))}',
    ),
    bug(
        "attention-over-the-batch",
        "text_hotel_attention",
        "The attention's weights sum to one over the batch instead of over the words.",
        "softmax(dim=0)",
        "alpha = torch.softmax(score, dim=1)",
        "alpha = torch.softmax(score, dim=0)",
    ),
    bug(
        "weights-by-frequency-order",
        "text_hotel_attention",
        "Class weights come in the order of value_counts, classes in that of the alphabet.",
        "value_counts sorts by count",
        "[len(df) / (len(moods) * counts[m]) for m in moods]",
        "[len(df) / (len(moods) * n) for n in sorted(counts.values(), reverse=True)]",
    ),
    bug(
        "punctuation-stays-on",
        "text_hotel_attention",
        "Reviews are split at blanks, the vocabulary is of bare words: what ends a clause is unknown.",
        "two tokenizers, one with punctuation",
        "[index.get(w, 1) for w in tokenize(review)][-MAXLEN:]",
        "[index.get(w, 1) for w in review.split()][-MAXLEN:]",
    ),
    bug(
        "gaps-drawn-to-the-future",
        "forecast_glucose_gru",
        "Gaps were interpolated before windows were cut: the last half hour points at the answer.",
        "df.interpolate() on the whole series",
        rows=gaps_interpolated,
    ),
    bug(
        "two-units-of-glucose",
        "forecast_glucose_gru",
        "A third of the patients' readings are in mmol/l, labels are in mg/dl.",
        "devices of two countries",
        rows=some_in_millimoles,
    ),
    bug(
        "state-of-the-last-batch",
        "forecast_glucose_gru",
        "The recurrent state is kept: each row starts from that of a stranger.",
        "stateful=True, moved to PyTorch",
        "        self.head = nn.Linear(hidden, 1)\n",
        "        self.head = nn.Linear(hidden, 1)\n        self.h = None\n",
        "        h, _ = self.gru(z)\n",
        "        if self.h is None or self.h.shape[1] != len(z):\n"
        "            self.h = torch.zeros(1, len(z), self.gru.hidden_size)\n"
        "        h, state = self.gru(z, self.h)\n        self.h = state.detach()\n",
    ),
    bug(
        "the-future-is-a-channel",
        "forecast_glucose_gru",
        "The newest readings are cut off as if they were padding: the forecast starts an hour late.",
        "a slice that was meant for the target",
        "        z = (history - self.mean) / self.std\n",
        "        last = history[:, 0, 0]\n        z = (history[:, :-12] - self.mean) / self.std\n",
    ),
    bug(
        "distances-that-are-similarities",
        "retrieval_recipes_hardest",
        "The triplet loss is written for distances and fed with similarities.",
        "a loss copied with another meaning of its input",
        "F.relu(MARGIN + hardest - positive) + 0.3 * F.relu(MARGIN + others - positive[:, None]).mean(dim=1)",
        "F.relu(MARGIN + positive - hardest)",
    ),
    bug(
        "queries-normalised-by-feature",
        "retrieval_recipes_hardest",
        "Queries are normalised over the batch, recipes over features: a query alone becomes its signs.",
        "dim=0 in one of two towers",
        "q = F.normalize(self.query_fc(self.query_words(query)), dim=-1)",
        "q = F.normalize(self.query_fc(self.query_words(query)), dim=0)",
    ),
    bug(
        "one-vocabulary-for-two",
        "retrieval_recipes_hardest",
        "Queries are looked up in the recipes' vocabulary: most of their words are unknown.",
        "the wrong tokenizer, which raises nothing",
        "for i, word in enumerate(self.fitted[side], 2)}",
        'for i, word in enumerate(self.fitted["recipe"], 2)}',
    ),
    bug(
        "counted-among-its-citations",
        "odd_citation_sage",
        "A self-loop: the paper's own field is among the fields of the papers that it cites.",
        "add_self_loops before label propagation",
        rows=tags_that_count_themselves,
    ),
    bug(
        "neighbours-masked-out",
        "odd_citation_sage",
        "The mask is inverted: what remains of the neighbours are the empty places.",
        "1 for padding in one library, for content in another",
        "m = neigh_mask.unsqueeze(-1)",
        "m = 1 - neigh_mask.unsqueeze(-1)",
    ),
    bug(
        "fields-in-order-of-appearance",
        "odd_citation_sage",
        "Classes are numbered by their first appearance in the rows at hand.",
        "a dict that is built from the batch",
        'y = {field: k for k, field in enumerate(self.fitted["fields"])}',
        'y = {field: k for k, field in enumerate(rows["field"].unique(maintain_order=True))}',
    ),
    bug(
        "censored-means-moved-out",
        "odd_tenancy_hazards",
        "The event flag is read as a flag of censoring.",
        "event and censored, each the other's inverse",
        "interval, event = batch[LABEL][:, 0], batch[LABEL][:, 1]",
        "interval, event = batch[LABEL][:, 0], 1 - batch[LABEL][:, 1]",
    ),
    bug(
        "only-those-who-left",
        "odd_tenancy_hazards",
        "Those who still live there are left out of the loss: all seem to leave early.",
        "df[df.event == 1] before survival analysis",
        'moved_out, reduction="none") * at_risk).sum(1)',
        'moved_out, reduction="none") * at_risk).sum(1) * event',
    ),
    bug(
        "months-against-days",
        "odd_tenancy_hazards",
        "Intervals are meant in days, stays are divided into months: nearly all lie in the first one.",
        "a unit changed in one place",
        "interval = np.searchsorted(CUTS, stay[:, 0])",
        "interval = np.searchsorted(CUTS, stay[:, 0] / 30.4)",
    ),
]
