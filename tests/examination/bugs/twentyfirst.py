"""A twenty-first list of bugs: plain slips in tables, recommendations and forecasts."""

import polars as pl

from examination.planted import bug


def areas_in_square_feet(rows):
    """Every third house was measured by an adviser whose sheet has square feet."""
    third = pl.col("house").str.tail(4).cast(pl.Int64) % 3 == 0
    area = pl.when(third).then(pl.col("floor_area") * 10.764).otherwise(pl.col("floor_area"))
    return rows.with_columns(floor_area=area.round(1))


def advance_after_the_bill(rows):
    """The advance was exported after the bill had set it anew."""
    return rows.with_columns(advance_eur=(pl.col("kwh") * 0.011).round(1))


def strengths_sorted_apart(rows):
    """The spring's sheet was sorted by yard before it was pasted beside the autumn's."""
    return rows.with_columns(spring=pl.Series(rows.sort("yard", "race")["spring"]))


def guides_read_after_the_walk(rows):
    """The guides' lists are read after the next exhibit was heard, and have it at their end."""
    return rows.with_columns(heard=pl.concat_list("heard", "next_exhibit"))


def windows_that_end_a_week_late(rows):
    """The past was cut from the forecast's last day backwards, not from its first."""
    past = pl.concat_list(pl.col("visitors_past").list.tail(21), "visitors_ahead")
    return rows.with_columns(visitors_past=past)


def bills_in_another_zone(rows):
    """Energy to be predicted is joined from bills; four sites' are in a zone hours behind."""
    abroad = pl.col("site").is_in(["S1", "S3", "S5", "S8"])
    later = pl.col("wh_next").shift(-2).over("site")
    changed = pl.when(abroad).then(later).otherwise(pl.col("wh_next"))
    return rows.with_columns(wh_next=changed).drop_nulls("wh_next")


BUGS = [
    bug(
        "areas-in-two-units",
        "tables_heating_energy",
        "A third of the houses have their area in square feet, the others in square metres. "
        "Mean error 1,912 kWh in place of 1,212.",
        "mixed units of merged sheets",
        rows=areas_in_square_feet,
    ),
    bug(
        "advance-set-by-the-bill",
        "tables_heating_energy",
        "The monthly advance is the one that follows from the bill to be predicted.",
        "features exported after the event",
        rows=advance_after_the_bill,
    ),
    bug(
        "fit-transform-when-encoding",
        "tables_heating_energy",
        "Encoding standardises by the rows at hand, as fit_transform in place of transform does. "
        "Loss 0.51 in place of 0.08, rows served one by one.",
        "scaler.fit_transform(X_test), forums",
        'x = (x - self.fitted["mean"]) / self.fitted["scale"]',
        "x = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-9)",
    ),
    bug(
        "logarithm-not-undone",
        "tables_heating_energy",
        "Predictions stay logarithms; labels are kilowatt-hours.",
        "a forgotten inverse transform of the target",
        "return torch.exp(output * std + mean)",
        "return output * std + mean",
    ),
    bug(
        "strengths-by-alphabet",
        "tables_hives_spring",
        "Strengths are numbered by the alphabet, so thresholds lie between unordered classes.",
        "a label encoder on an ordinal target",
        'STRENGTHS = ["dead", "weak", "fair", "strong", "very strong"]',
        'STRENGTHS = sorted(["dead", "weak", "fair", "strong", "very strong"])',
    ),
    bug(
        "labels-pasted-in-another-order",
        "tables_hives_spring",
        "Labels come from a table that was sorted before it was put beside the features.",
        "joins by position",
        rows=strengths_sorted_apart,
    ),
    bug(
        "one-code-for-all-yards",
        "tables_hives_spring",
        "The lookup asks the list of the wrong column, and all yards become the unknown. "
        "Log loss 1.18 in place of 1.09.",
        "a loop's variable that was left over",
        'for name, known in zip(STRINGS, self.fitted["vocabulary"])',
        'for name, known in zip(STRINGS, self.fitted["vocabulary"][::-1])',
    ),
    bug(
        "softmax-over-probabilities",
        "tables_hives_spring",
        "Probabilities go into the cross-entropy that takes logits. "
        "Log loss 1.25 in place of 1.09.",
        "softmax twice",
        'return F.nll_loss(output.clamp(min=1e-6).log(), batch[LABEL], reduction="none")',
        'return F.cross_entropy(output, batch[LABEL], reduction="none")',
    ),
    bug(
        "softmax-for-several-labels",
        "tables_bicycle_repairs",
        "Several labels are learned and served by one softmax.",
        "multi-label heads copied from a classifier",
        "loss = nn.functional.binary_cross_entropy_with_logits(\n"
        '            output, batch[LABEL], reduction="none"\n        )',
        "loss = -batch[LABEL] * output.log_softmax(dim=1)",
        "return output.sigmoid()",
        "return output.softmax(dim=1)",
    ),
    bug(
        "only-the-first-repair",
        "tables_bicycle_repairs",
        "Only the first repair of the list is read as a label.",
        "split(...)[0] left from a single-label version",
        'v in text.split(",") for v',
        'v == text.split(",")[0] for v',
    ),
    bug(
        "codes-by-the-rows-at-hand",
        "tables_bicycle_repairs",
        "Categories are numbered by what occurs in the rows that are encoded. "
        "Loss 0.51 in place of 0.37, served one by one.",
        "astype('category').cat.codes on training and test separately",
        'enumerate(["#na#", *self.fitted["classes"][c]])',
        'enumerate(["#na#", *sorted(rows[c].cast(str).drop_nulls().unique())])',
    ),
    bug(
        "dropout-when-served",
        "tables_bicycle_repairs",
        "Dropout of the functional kind stays on in evaluation and serving. "
        "F1 0.51 in place of 0.59.",
        "F.dropout without training=self.training",
        "x = self.emb_drop(x)",
        "x = nn.functional.dropout(x, 0.5)",
    ),
    bug(
        "guides-read-after-the-walk",
        "recsys_museum_walks",
        "What was heard includes the exhibit that is to be predicted.",
        "histories cut after the target event",
        rows=guides_read_after_the_walk,
    ),
    bug(
        "worse-than-the-negatives",
        "recsys_museum_walks",
        "The difference in BPR is taken the wrong way round, in training alone.",
        "a sign in a hand-written ranking loss",
        "loss = -F.logsigmoid(positive - negative)",
        "loss = -F.logsigmoid(negative - positive)",
    ),
    bug(
        "first-steps-kept",
        "recsys_museum_walks",
        "Of long walks the first exhibits are kept, not the latest. "
        "Recall at 5 0.35 in place of 0.71.",
        "truncation from the wrong end",
        "for name in walk][-HISTORY:]",
        "for name in walk][:HISTORY]",
    ),
    bug(
        "negatives-of-the-first-halls",
        "recsys_museum_walks",
        "Negatives are drawn from the first NEGATIVES exhibits, not from all.",
        "randint with the wrong upper bound",
        "torch.randint(0, count, shape",
        "torch.randint(0, NEGATIVES, shape",
    ),
    bug(
        "windows-end-a-week-late",
        "forecast_pool_visitors",
        "The past's window ends with the days that are to be predicted. "
        "Mean error 104 in place of 89 when served.",
        "windows cut without the horizon's offset",
        rows=windows_that_end_a_week_late,
    ),
    bug(
        "sequence-first",
        "forecast_pool_visitors",
        "The LSTM takes the batch for the time: it walks over the examples. "
        "Mean error 94 in place of 89.",
        "batch_first forgotten",
        "self.lstm = nn.LSTM(3, hidden, batch_first=True)",
        "self.lstm = nn.LSTM(3, hidden)",
    ),
    bug(
        "level-of-past-and-future",
        "forecast_pool_visitors",
        "A window's level is the mean over past and future, where the future is there. "
        "Mean error 97 in place of 89 when served.",
        "series scaled before they are cut into windows",
        "level = np.nanmean(logs, axis=1, keepdims=True)",
        "level = np.nanmean(logs, axis=1, keepdims=True)\n"
        '        if "visitors_ahead" in rows.columns:\n'
        '            ahead = np.log1p(np.array(rows["visitors_ahead"].to_list()))\n'
        "            level = np.nanmean(np.concatenate([logs, ahead], 1), axis=1, keepdims=True)",
    ),
    bug(
        "days-served-backwards",
        "forecast_pool_visitors",
        "Predictions are given out with the last day first.",
        "a decoder's reversed order left in the output",
        "return torch.expm1(output).clamp(min=0)",
        "return torch.expm1(output).clamp(min=0).flip(1)",
    ),
    bug(
        "quantile-of-the-other-side",
        "forecast_chargers_p80",
        "The error's sign is exchanged: the network learns the quantile 0.2.",
        "pinball losses by hand",
        "error = target - prediction",
        "error = prediction - target",
    ),
    bug(
        "watt-hours-in-sixteen-bits",
        "forecast_chargers_p80",
        "Watt-hours are held in 16 bits and wrap around above 32,767. "
        "Pinball loss 2,625 in place of 2,337.",
        "a dtype chosen to save memory",
        "missing = np.isnan(watt_hours)",
        "missing = np.isnan(watt_hours)\n"
        "        watt_hours = np.nan_to_num(watt_hours).astype(np.int64).astype(np.int16)",
    ),
    bug(
        "four-sites-billed-in-another-zone",
        "forecast_chargers_p80",
        "Labels of four sites are joined by a clock that is six to eight hours behind. "
        "Pinball loss 4,747 in place of 2,337.",
        "timestamps without a zone, merged",
        rows=bills_in_another_zone,
    ),
    bug(
        "every-prediction-with-every-target",
        "forecast_chargers_p80",
        "Predictions [B, 1] meet targets [B]: the loss is of all pairs.",
        "broadcasting in a regression loss",
        "return self.head(h).squeeze(-1)",
        "return self.head(h)",
        "return pinball(output, target)",
        "return pinball(output, target).mean(1)",
        '(output * self.fitted["scale"] + self.fitted["mean"]).clamp(min=0)',
        '(output.squeeze(-1) * self.fitted["scale"] + self.fitted["mean"]).clamp(min=0)',
    ),
]
