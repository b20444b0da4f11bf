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


def speeds_in_miles(rows):
    """Four cars in ten report miles an hour."""
    rng = np.random.default_rng(0)
    is_miles = pl.lit(pl.Series(rng.random(rows.height) < 0.4))
    slow = (pl.col("speed_kmh") / 1.609).round()
    return rows.with_columns(speed_kmh=pl.when(is_miles).then(slow).otherwise(pl.col("speed_kmh")))


def reference_one_row_late(rows):
    """The reference's logger started one window later."""
    return rows.with_columns(
        reference=pl.col("reference").shift(1).fill_null(pl.col("reference").last())
    )


BUGS = [
    bug(
        # deviance 11.6; 1.07 when healthy
        "offset-forgotten",
        "tables_ward_infections",
        "The rates are not multiplied by the bed days: a ward of 40 and one of 3,000 count alike.",
        "offset() lost on the way from R",
        "return eta + offset",
        "return eta",
    ),
    bug(
        # deviance 78; 1.07 when healthy
        "offset-added-twice",
        "tables_ward_infections",
        "The exposure is in the model's output already, and the loss adds it once more.",
        "an offset in forward and in the loss",
        "F.poisson_nll_loss(output, batch[LABEL]",
        'F.poisson_nll_loss(output + batch["offset"], batch[LABEL]',
    ),
    bug(
        # r2 0.02; 0.81 when healthy
        "column-against-row",
        "tables_energy_missing",
        "A column of predictions meets a row of targets: every pair is compared, and all learn the mean.",
        "broadcasting of (N, 1) with (N,)",
        "target.unsqueeze(1), reduction",
        "target, reduction",
    ),
    bug(
        # rmse 60; 19 when healthy
        "minus-999",
        "tables_energy_missing",
        "What is unknown stays -999 and is scaled like a number: other values lie within a hair.",
        "a sentinel that trees do not mind",
        'df[c].fill_null(f["median"][c])',
        "df[c].fill_null(-999)",
    ),
    bug(
        # r2 0.53 on rows that are in order; 0.81 when healthy
        "other-half-sorted",
        "tables_energy_missing",
        "Half of the labels were sorted apart from their rows.",
        "a join that does not keep the order",
        rows=half_sorted,
    ),
    bug(
        # AUC 0.58 in another process; 0.81 in the one that trained
        "hash-of-the-process",
        "tables_chargebacks_hashed",
        "Shops are hashed by Python's `hash`, which differs in every process.",
        "the hashing trick with hash()",
        "return zlib.crc32(name.encode()) % N_BUCKETS",
        "return hash(name) % N_BUCKETS",
    ),
    bug(
        # AUC 0.48; 0.81 when healthy
        "codes-of-the-batch",
        "tables_chargebacks_hashed",
        "Shops are numbered in the order in which they come in the rows at hand.",
        "pd.factorize at encoding",
        'torch.tensor([bucket(m) for m in rows["merchant"]])',
        'torch.tensor(rows["merchant"].to_pandas().factorize()[0].copy()) % N_BUCKETS',
    ),
    bug(
        # AUC 0.69; 0.81 when healthy
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
        # 2.1 pixels off; 0.12 when healthy
        "mirror-keeps-the-eyes",
        "images_face_keypoints",
        "A mirrored face keeps its left eye as the left one: the two become one place between them.",
        "a flip without the swap of left and right",
        "        mirrored = mirrored[:, [RIGHT_EYE, LEFT_EYE, MOUTH]]\n",
        "",
    ),
    bug(
        # 0.82 pixels off; 0.12 when healthy
        "picture-mirrored-alone",
        "images_face_keypoints",
        "The picture is mirrored, its points stay.",
        "image augmentation that does not know of targets",
        "LABEL: torch.where(mirror[:, None, None], mirrored, points)}",
        "LABEL: points}",
    ),
    bug(
        # 0.79 pixels off; 0.12 when healthy
        "rows-for-columns",
        "images_face_keypoints",
        "The soft argmax gives y before x, points are x before y.",
        "(row, column) against (x, y)",
        "torch.stack((x, y), dim=-1)",
        "torch.stack((y, x), dim=-1)",
    ),
    bug(
        # 1.9 pixels off; 0.12 when healthy
        "softmax-over-the-points",
        "images_face_keypoints",
        "The softmax runs over the three heatmaps instead of over the places.",
        "softmax(dim=1) out of habit",
        "p = heatmaps.flatten(2).softmax(dim=2)",
        "p = heatmaps.flatten(2).softmax(dim=1)",
    ),
    bug(
        # mean IoU 0.60; 0.82 when healthy
        "softmax-over-the-rows",
        "images_street_classes",
        "Classes are normalised along the picture's height.",
        "a dim counted in another layout",
        "each = F.cross_entropy(output, target, weight=weight,",
        "each = F.nll_loss(F.log_softmax(output, dim=2), target, weight=weight,",
    ),
    bug(
        # mean IoU 0.66; 0.82 when healthy
        "rare-class-weighs-least",
        "images_street_classes",
        "The class weights are the frequencies, not their inverse.",
        "1 / forgotten",
        "weight = 1 / frequency.sqrt()",
        "weight = frequency**2",
    ),
    bug(
        # mean IoU 0.24 against true masks; 0.82 when healthy
        "mask-turned",
        "images_street_classes",
        "Masks are read with height and width exchanged and turned afterwards.",
        "(W, H) from PIL against (H, W)",
        ".view(-1, H, W)\n        return batch",
        ".view(-1, W, H).transpose(1, 2).contiguous()\n        return batch",
    ),
    bug(
        # mean IoU 0.64; 0.82 when healthy
        "channels-viewed-not-permuted",
        "images_street_classes",
        "HWC pixels are viewed as CHW: each channel is a third of the picture with its colours mixed.",
        "view for permute",
        "pixels.permute(0, 3, 1, 2).contiguous()",
        "pixels.reshape(-1, 3, H, W)",
    ),
    bug(
        # AUC 0.56; 0.997 when healthy
        "one-means-different",
        "retrieval_signature_contrastive",
        "The loss takes 1 for different, as the paper does; labels say 1 for the same hand.",
        "the paper's Y and the data's",
        "return same * output.pow(2) + (1 - same) * F.relu",
        "return (1 - same) * output.pow(2) + same * F.relu",
    ),
    bug(
        # AUC 0.96, and a pair alone has two vectors of signs; 0.997 when healthy
        "normalised-over-the-batch",
        "retrieval_signature_contrastive",
        "Each feature is normalised over the rows of the batch instead of each vector.",
        "F.normalize(z, dim=0)",
        "return F.normalize(z, dim=1)",
        "return F.normalize(z, dim=0)",
    ),
    bug(
        # reports 0.992 of slots right; 0.982 are
        "pads-are-right-answers",
        "text_commands_joint",
        "Padded positions carry the slot O: they are learned, and counted as right.",
        "labels padded by a real class",
        "labels = np.full((len(rows), 1 + MAX_LEN), IGNORE)",
        'labels = np.full((len(rows), 1 + MAX_LEN), slot_to_id["O"])',
    ),
    bug(
        # loss 0.110, up by a quarter, and answers that differ from call to call
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
        # balanced accuracy 0.75; 0.92 when healthy
        "attention-over-the-batch",
        "text_hotel_attention",
        "The attention's weights sum to one over the batch instead of over the words.",
        "softmax(dim=0)",
        "alpha = torch.softmax(score, dim=1)",
        "alpha = torch.softmax(score, dim=0)",
    ),
    bug(
        # balanced accuracy 0.86; 0.92 when healthy
        "weights-by-frequency-order",
        "text_hotel_attention",
        "Class weights come in the order of value_counts, classes in that of the alphabet.",
        "value_counts sorts by count",
        "[len(df) / (len(moods) * counts[m]) for m in moods]",
        "[len(df) / (len(moods) * n) for n in sorted(counts.values(), reverse=True)]",
    ),
    bug(
        # balanced accuracy 0.78; 0.92 when healthy
        "punctuation-stays-on",
        "text_hotel_attention",
        "Reviews are split at blanks, the vocabulary is of bare words: what ends a clause is unknown.",
        "two tokenizers, one with punctuation",
        "[index.get(w, 1) for w in tokenize(review)][-MAXLEN:]",
        "[index.get(w, 1) for w in review.split()][-MAXLEN:]",
    ),
    bug(
        # reports mae 2.98; 3.97 where nothing is filled
        "gaps-drawn-to-the-future",
        "forecast_glucose_gru",
        "Gaps were interpolated before windows were cut: the last half hour points at the answer.",
        "df.interpolate() on the whole series",
        rows=gaps_interpolated,
    ),
    bug(
        # mae 10.5; 3.8 when healthy
        "two-units-of-glucose",
        "forecast_glucose_gru",
        "A third of the patients' readings are in mmol/l, labels are in mg/dl.",
        "devices of two countries",
        rows=some_in_millimoles,
    ),
    bug(
        # mae 11.7; 3.8 when healthy
        "the-future-is-a-channel",
        "forecast_glucose_gru",
        "The newest readings are cut off as if they were padding: the forecast starts an hour late.",
        "a slice that was meant for the target",
        "        z = (history - self.mean) / self.std\n",
        "        last = history[:, 0, 0]\n        z = (history[:, :-12] - self.mean) / self.std\n",
    ),
    bug(
        # MRR 0.04; 0.92 when healthy
        "distances-that-are-similarities",
        "retrieval_recipes_hardest",
        "The triplet loss is written for distances and fed with similarities.",
        "a loss copied with another meaning of its input",
        "F.relu(MARGIN + hardest - positive) + 0.3 * F.relu(MARGIN + others - positive[:, None]).mean(dim=1)",
        "F.relu(MARGIN + positive - hardest)",
    ),
    bug(
        # MRR 0.18; 0.92 when healthy
        "one-vocabulary-for-two",
        "retrieval_recipes_hardest",
        "Queries are looked up in the recipes' vocabulary: most of their words are unknown.",
        "the wrong tokenizer, which raises nothing",
        "for i, word in enumerate(self.fitted[side], 2)}",
        'for i, word in enumerate(self.fitted["recipe"], 2)}',
    ),
    bug(
        # reports accuracy 0.98; 0.77 without the own field, 0.79 when healthy
        "counted-among-its-citations",
        "odd_citation_sage",
        "A self-loop: the paper's own field is among the fields of the papers that it cites.",
        "add_self_loops before label propagation",
        rows=tags_that_count_themselves,
    ),
    bug(
        # accuracy 0.74; 0.79 when healthy
        "neighbours-masked-out",
        "odd_citation_sage",
        "The mask is inverted: what remains of the neighbours are the empty places.",
        "1 for padding in one library, for content in another",
        "m = neigh_mask.unsqueeze(-1)",
        "m = 1 - neigh_mask.unsqueeze(-1)",
    ),
    bug(
        # accuracy 0.54 under the fitted order; 0.79 when healthy
        "fields-in-order-of-appearance",
        "odd_citation_sage",
        "Classes are numbered by their first appearance in the rows at hand.",
        "a dict that is built from the batch",
        'y = {field: k for k, field in enumerate(self.fitted["fields"])}',
        'y = {field: k for k, field in enumerate(rows["field"].unique(maintain_order=True))}',
    ),
    bug(
        # likelihood loss 2.37; 1.55 when healthy
        "censored-means-moved-out",
        "odd_tenancy_hazards",
        "The event flag is read as a flag of censoring.",
        "event and censored, each the other's inverse",
        "interval, event = batch[LABEL][:, 0], batch[LABEL][:, 1]",
        "interval, event = batch[LABEL][:, 0], 1 - batch[LABEL][:, 1]",
    ),
    bug(
        # likelihood loss 1.69 on all rows; 1.55 when healthy
        "only-those-who-left",
        "odd_tenancy_hazards",
        "Those who still live there are left out of the loss: all seem to leave early.",
        "df[df.event == 1] before survival analysis",
        'moved_out, reduction="none") * at_risk).sum(1)',
        'moved_out, reduction="none") * at_risk).sum(1) * event',
    ),
    bug(
        # likelihood loss 12.7 in days; 1.55 when healthy
        "months-against-days",
        "odd_tenancy_hazards",
        "Intervals are meant in days, stays are divided into months: nearly all lie in the first one.",
        "a unit changed in one place",
        "interval = np.searchsorted(CUTS, stay[:, 0])",
        "interval = np.searchsorted(CUTS, stay[:, 0] / 30.4)",
    ),
    bug(
        # log loss 1.19; 0.93 when healthy
        "grades-by-the-alphabet",
        "tables_crash_ordinal",
        "Grades are numbered by the alphabet: fatal comes before minor, minor before none.",
        "LabelEncoder on ordered labels",
        'GRADES = ["none", "minor", "serious", "fatal"]',
        'GRADES = ["fatal", "minor", "none", "serious"]',
    ),
    bug(
        # balanced accuracy 0.41; 0.47 when healthy
        "miles-and-kilometres",
        "tables_crash_ordinal",
        "Four cars in ten report miles an hour in the column that says kilometres.",
        "firmware of two markets",
        rows=speeds_in_miles,
    ),
    bug(
        # log loss 1.49; 0.93 when healthy
        "learning-rate-in-thousandths",
        "tables_crash_ordinal",
        "The rate is a thousandth of what was meant: the weights hardly move.",
        "5e-6 for 5e-3",
        "learning_rate = 5e-3",
        "learning_rate = 5e-6",
    ),
    bug(
        # log loss 1.67; 0.93 when healthy
        "odds-for-log-odds",
        "tables_crash_ordinal",
        "Probabilities go through a second sigmoid.",
        "a sigmoid in the model and in predict",
        "return self.score(x) - cuts",
        "return torch.sigmoid(self.score(x) - cuts)",
    ),
    bug(
        # macro F1 0.45; 0.69 when healthy
        "weight-of-the-negatives",
        "tables_diagnosis_tags",
        "The positive weight is positives by negatives: rare diagnoses are never made.",
        "pos / neg for neg / pos",
        "np.sqrt((1 - share) / share)",
        "(share / (1 - share))",
    ),
    bug(
        # macro F1 0.56; 0.69 when healthy
        "columns-of-another-order",
        "tables_diagnosis_tags",
        "Means are taken in one order of columns, rows are read in another.",
        "two lists of columns",
        "labs = (rows.select(LABS).to_numpy() - ",
        "labs = (rows.select(LABS[::-1]).to_numpy() - ",
    ),
    bug(
        # macro F1 0.41; 0.69 when healthy
        "labs-in-half",
        "tables_diagnosis_tags",
        "A mask from an ablation still sets the last four values to zero.",
        "an experiment that was merged",
        "        sex = (rows",
        "        labs[:, 4:] = 0.0\n        sex = (rows",
    ),
    bug(
        # macro F1 0.62, exact match 0.32; 0.69 and 0.54 when healthy
        "whole-model-frozen-but-the-first",
        "tables_diagnosis_tags",
        "All layers but the first are frozen, for a fine-tuning that never came.",
        "requires_grad = False on the wrong side",
        "        self.mlp = build_mlp([n_features, 64, 64, n_labels], dropout=0.1)\n",
        "        self.mlp = build_mlp([n_features, 64, 64, n_labels], dropout=0.1)\n"
        "        for layer in list(self.mlp)[4:]:\n            layer.requires_grad_(False)\n",
    ),
    bug(
        # likelihood loss 0.04; -0.37 when healthy
        "degrees-in-the-sine",
        "odd_wind_mixture",
        "Degrees go into sine and cosine: neighbouring directions are strangers.",
        "np.sin wants radians",
        'np.deg2rad(rows["wind_direction"].to_numpy())',
        'rows["wind_direction"].to_numpy()',
    ),
    bug(
        # likelihood loss 6.4 in a batch of 1800; -0.37 when healthy
        "shares-over-the-batch",
        "odd_wind_mixture",
        "The shares of the mixture sum to one over the rows: a row's likelihood depends on the others.",
        "log_softmax over dim 0",
        "torch.log_softmax(self.z_pi(h), dim=-1)",
        "torch.log_softmax(self.z_pi(h), dim=0)",
    ),
    bug(
        # likelihood loss at least -0.11; -0.37 when healthy
        "mean-of-logs",
        "odd_wind_mixture",
        "Log densities are averaged, not their sum taken in the logarithm: both components become one.",
        "log and sum exchanged",
        "return -torch.logsumexp(log_pi + log_normal, dim=-1)",
        "return -(log_pi.exp() * log_normal).sum(dim=-1)",
    ),
    bug(
        # likelihood loss 3.9 as a density; -0.37 when healthy
        "width-without-its-logarithm",
        "odd_wind_mixture",
        "The density forgets to divide by the width: the widest normal always wins.",
        "a term of the Gaussian left out",
        "log_normal = -0.5 * z**2 - log_sigma - LOG_SQRT_2PI",
        "log_normal = -0.5 * z**2 - LOG_SQRT_2PI",
    ),
    bug(
        # average precision 0.13; 0.94 when healthy
        "spectrum-across-the-rows",
        "odd_bearing_sad",
        "The Fourier transform runs over the rows of the batch instead of over time.",
        "axis=0",
        "power = np.abs(np.fft.rfft(waves * window, axis=1)) ** 2",
        "power = np.abs(np.fft.fft(waves * window, axis=0)) ** 2",
    ),
    bug(
        # AUC 0.02; 0.98 when healthy
        "score-upside-down",
        "odd_bearing_sad",
        "The score is high near the centre: what is normal is reported as a fault.",
        "decision_function, whose sign differs between libraries",
        "return 1 - torch.exp(-output)",
        "return torch.exp(-output)",
    ),
    bug(
        # AUC 0.53; 0.98 when healthy
        "faults-pulled-in",
        "odd_bearing_sad",
        "Faults are pulled to the centre like all others: everything collapses there.",
        "a one-class loss on data with faults",
        "return (1 - fault) * output + fault / (output + EPS)",
        "return (1 - fault) * output + fault * output",
    ),
    bug(
        # accuracy 0.80; 0.98 when healthy
        "colours-flipped-for-sides",
        "images_fruit_amp",
        "The flip is along the channels: half of the training's pictures change red and blue.",
        "a flip written for NHWC",
        "image.flip(3)",
        "image.flip(1)",
    ),
    bug(
        # accuracy 0.50, that of the commonest class; 0.98 when healthy
        "whole-numbers-divided",
        "images_fruit_amp",
        "Pixels are divided as integers: 255 becomes 1, everything else 0.",
        "// for /",
        "image = (image / 255 -",
        "image = (image // 255 -",
    ),
    bug(
        # accuracy 0.50, that of the commonest class; 0.98 when healthy
        "bytes-that-wrap",
        "images_fruit_amp",
        "Contrast is raised in bytes: what exceeds 255 starts again at zero.",
        "arithmetic in uint8",
        "        image = (image / 255 -",
        "        image = image * np.uint8(3)\n        image = (image / 255 -",
    ),
    bug(
        # accuracy 0.26, as before training; 0.98 when healthy
        "gradients-clipped-to-nothing",
        "images_fruit_amp",
        "Gradients are clipped to a norm of 0.0001 under plain descent: nothing is learned.",
        "max_norm in the wrong unit",
        "optimizer = { learning_rate = 6e-3 }",
        'optimizer = { name = "sgd", learning_rate = 6e-3 }\nclipping = { max_norm = 1e-4 }',
    ),
    bug(
        # signal to noise -1.3 dB; 10.8 when healthy
        "rebuilds-the-noise",
        "odd_strain_denoiser",
        "The loss compares with the noisy signal: the best answer is to change nothing.",
        "inputs as targets, copied from an autoencoder",
        "F.mse_loss(output, batch[LABEL]",
        'F.mse_loss(output, batch["noisy"]',
    ),
    bug(
        # reports 2.7 dB after training and 20.7 before it; 10.8 are true
        "judged-by-the-noise",
        "odd_strain_denoiser",
        "The metric compares with the noisy signal: changing nothing would be perfect.",
        "the wrong column in the metric alone",
        "        target = batch[LABEL]\n",
        '        target = batch["noisy"]\n',
    ),
    bug(
        # signal to noise 3.0 dB; 10.8 when healthy
        "sign-of-the-input-alone",
        "odd_strain_denoiser",
        "Augmentation turns the sensor's sign, not the reference's.",
        "a transform of x alone",
        "LABEL: batch[LABEL] * sign}",
        "LABEL: batch[LABEL]}",
    ),
    bug(
        # signal to noise 7.7 dB, by chance each time; 10.8 when healthy
        "noise-that-stays-on",
        "odd_strain_denoiser",
        "Noise is added in forward, at prediction, too.",
        "GaussianNoise without `if self.training`",
        "x = noisy[:, None, :]",
        "x = noisy[:, None, :] + 0.5 * torch.randn_like(noisy[:, None, :])",
    ),
    bug(
        # signal to noise 0.6 dB on true references; 10.8 when healthy
        "reference-of-the-row-before",
        "odd_strain_denoiser",
        "References are one row late.",
        "two loggers that did not start together",
        rows=reference_one_row_late,
    ),
    bug(
        # 1 date in 2 right; all when healthy
        "one-buffer-for-all-calls",
        "text_dates_attention",
        "All calls fill one buffer, which is never emptied: texts keep the tails of others, batches overwrite each other.",
        "an allocation moved out of the function",
        "Tx, Ty = 28, 8\nPAD, UNK = 0, 1\n",
        "Tx, Ty = 28, 8\nPAD, UNK = 0, 1\nBUFFER = np.full((50_000, Tx), PAD)\n",
        "X = np.full((rows.height, Tx), PAD)",
        "X = BUFFER[: rows.height]",
    ),
    bug(
        # 1 date in 100 right; all when healthy
        "text-ends-after-eight",
        "text_dates_attention",
        "Texts are cut after eight characters: the year, mostly last, is lost.",
        "a maximum length from another data set",
        "[:Tx]\n",
        "[:8]\n",
    ),
    bug(
        # 4 dates in 100 right; all when healthy
        "graph-cut-at-the-encoder",
        "text_dates_attention",
        "The encoder's states are detached: characters and GRU stay as they were drawn.",
        "detach() against an error of memory",
        "context = alphas @ a  ",
        "context = alphas.detach() @ a.detach()  ",
        "self.keys(a).transpose",
        "self.keys(a.detach()).transpose",
    ),
    bug(
        # reports 0.004 nats a note; 5.3 under the true mask, 0.90 when healthy
        "mask-one-too-late",
        "text_melody_transformer",
        "The causal mask begins one place too late: each note sees the one that it predicts.",
        "triu(diagonal=2)",
        "triu(diagonal=1)",
        "triu(diagonal=2)",
    ),
    bug(
        # reports 0.62 nats a note; 0.92 without the padding
        "pads-are-predicted",
        "text_melody_transformer",
        "Padding is a target: most of the mean is the ease of predicting it.",
        "ignore_index forgotten",
        "target = np.full((len(tunes), BLOCK), -100)",
        "target = np.full((len(tunes), BLOCK), PAD)",
    ),
    bug(
        # 1.25 nats a note; 0.90 when healthy
        "positions-per-row",
        "text_melody_transformer",
        "Positions are added along the batch: all notes of a tune have one position.",
        "seq_first positions in a batch_first model",
        "h = h + self.position(torch.arange(T, device=src.device))",
        "h = h + self.position(torch.arange(len(src), device=src.device) % BLOCK)[:, None]",
    ),
    bug(
        # mae 8.2; 7.1 when healthy
        "milliseconds-for-seconds",
        "forecast_taxi_epochs",
        "Seconds are taken for milliseconds: all rides are of the same hour of January 1970.",
        "pd.to_datetime(unit='ms')",
        'epoch = rows["epoch"].to_numpy()',
        'epoch = rows["epoch"].to_numpy() // 1000',
    ),
    bug(
        # mae 35.5; 7.1 when healthy
        "logarithm-never-undone",
        "forecast_taxi_epochs",
        "Predictions stay logarithms, the metric counts rides.",
        "expm1 forgotten",
        'torch.expm1(output.squeeze(1) * self.fitted["log_std"] + self.fitted["log_mean"])',
        'output.squeeze(1) * self.fitted["log_std"] + self.fitted["log_mean"]',
    ),
    bug(
        # mae 8.5; 7.1 when healthy
        "all-zones-one",
        "forecast_taxi_epochs",
        "Zones are looked up by number, and are strings: each is the unknown one.",
        "a dict of ints and a key of text",
        "zone_id.get(z, 0)",
        "zone_id.get(z[1:], 0)",
    ),
]
