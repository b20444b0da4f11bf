"""A twenty-second list of bugs: ordinary slips in tables, forecasts and recommendations."""

import polars as pl

from examination.planted import bug


def firmness_of_a_broken_probe(rows):
    """The packing line's database has no nulls: what was not measured is stored as -999."""
    return rows.with_columns(firmness=pl.col("firmness").fill_null(-999.0))


def moves_counted_at_the_gate(rows):
    """Moves in the yard are exported when the container has left; it is moved every other day."""
    return rows.with_columns(yard_moves=pl.col("yard_moves") + (pl.col("dwell_h") // 40).cast(int))


def dwell_in_days_of_some_lines(rows):
    """Four lines send their own gate-out messages, which count days."""
    days = pl.col("line").is_in(["CMA", "MSC", "ONE", "ZIM"])
    return rows.with_columns(
        dwell_h=pl.when(days).then(pl.col("dwell_h") / 24).otherwise(pl.col("dwell_h"))
    )


def counts_of_the_section_above(rows):
    """A heading was skipped twice: the column of counts begins one row late."""
    return rows.with_columns(potholes=pl.col("potholes").shift(1)).drop_nulls("potholes")


def plates_read_by_columns(rows):
    """The lab's robot fills plates by columns, the spectrometer reads by rows: half of them so."""
    by_column = (pl.col("well") % 8) * 12 + pl.col("well") // 8
    sent = pl.when(pl.col("plate") % 2 == 0).then(by_column).otherwise(pl.col("well"))
    lab = rows.select("plate", "well", "fat_protein_lactose")
    asked = rows.drop("fat_protein_lactose").with_columns(lab_well=sent)
    on = {"left_on": ["plate", "lab_well"], "right_on": ["plate", "well"]}
    return asked.join(lab, **on, maintain_order="left").drop("lab_well")


def shares_over_all_loans(rows):
    """The share of a reader's late loans is computed once, over the whole table."""
    late = (pl.col("late") == "late").cast(float)
    share = (late.sum().over("reader") + 0.6) / (pl.len().over("reader") + 3)
    return rows.with_columns(late_share_before=share.round(4))


def late_loans_four_times(rows):
    """Late loans are repeated until both classes are about as frequent, before any split."""
    late = rows.filter(pl.col("late") == "late")
    frame = pl.concat([rows, late, late, late]).sample(fraction=1.0, shuffle=True, seed=5)
    return frame.with_columns(row_id=pl.int_range(frame.height))


def riders_smoothed_before_windows(rows):
    """The series was smoothed by a centred mean of five hours before windows were cut."""
    ahead, past = pl.col("riders_ahead"), pl.col("riders_past")

    def at(k):
        return past.list.get(k).fill_null(past.list.get(k - 24)).fill_null(0.0)

    last = (at(45) + at(46) + at(47) + ahead.list.get(0) + ahead.list.get(1)) / 5
    before = (at(44) + at(45) + at(46) + at(47) + ahead.list.get(0)) / 5
    rest = [(at(k - 2) + at(k - 1) + at(k) + at(k + 1) + at(k + 2)) / 5 for k in range(26, 46)]
    return rows.with_columns(riders_past=pl.concat_list(past.list.head(26), *rest, before, last))


def forecasts_of_the_day_before(rows):
    """Forecasts are joined by the day of issue, and begin with a day that is over."""
    return rows.with_columns(
        pl.concat_list(pl.col(past).list.tail(1), pl.col(ahead).list.head(2)).alias(ahead)
        for past, ahead in (("warm_past", "warm_ahead"), ("rain_past", "rain_ahead"))
    )


def running_totals_of_two_houses(rows):
    """Two houses' systems export how many are sold by then, not how many on the day."""
    totals = pl.col("house").is_in(["Keller", "Oper"])
    summed = pl.col("sold_past").list.eval(pl.element().cum_sum())
    changed = pl.when(totals).then(summed).otherwise(pl.col("sold_past"))
    return rows.with_columns(sold_past=changed)


def games_of_two_catalogues(rows):
    """Since April a new catalogue writes titles in capitals for new loans."""
    new = pl.col("at").dt.month() >= 4
    return rows.with_columns(
        next_game=pl.when(new)
        .then(pl.col("next_game").str.to_uppercase())
        .otherwise(pl.col("next_game"))
    )


BUGS = [
    bug(
        "unmeasured-firmness-999",
        "tables_apple_packing",
        "Firmness that was not measured is -999, and counts as a number. "
        "Log loss 0.44 in place of 0.39.",
        "sentinel values of databases without nulls",
        rows=firmness_of_a_broken_probe,
    ),
    bug(
        "weights-by-share",
        "tables_apple_packing",
        "Classes are weighted by their share in place of its inverse. "
        "Balanced accuracy 0.78 in place of 0.84.",
        "class_weight computed upside down",
        "(counts.sum() / (len(counts) * counts)).sqrt()",
        "(len(counts) * counts) / counts.sum()",
    ),
    bug(
        "numbers-in-the-order-of-the-file",
        "tables_apple_packing",
        "Columns are taken in the order in which rows bring them, not by the order of training. "
        "Log loss 8.88 in place of 0.39 with columns sorted by name.",
        "df[[c for c in df.columns if ...]] before a model is served",
        "x = rows.select(NUMBERS).to_numpy().astype(float)\n        x = (x -",
        "x = rows.select([c for c in rows.columns if c in NUMBERS]).to_numpy().astype(float)\n"
        "        x = (x -",
    ),
    bug(
        "moves-counted-at-the-gate",
        "tables_container_dwell",
        "Moves in the yard are those until the container left, and tell how long it stayed. "
        "Mean error 18.7 hours offline, 30.9 when served, in place of 23.1.",
        "features exported with today's state of a record",
        rows=moves_counted_at_the_gate,
    ),
    bug(
        "dwell-in-days-of-four-lines",
        "tables_container_dwell",
        "Labels of four lines are in days, the others in hours. "
        "Mean error 43.7 hours in place of 23.1.",
        "units of merged sources",
        rows=dwell_in_days_of_some_lines,
    ),
    bug(
        "learning-rate-a-hundredth",
        "tables_container_dwell",
        "The learning rate is a hundredth of what it was tuned to be. "
        "Mean error 35.8 hours in place of 23.1.",
        "5e-5, copied from fine-tuning",
        "optimizer = { learning_rate = 5e-3 }",
        "optimizer = { learning_rate = 5e-5 }",
    ),
    bug(
        "exponential-before-the-loss",
        "tables_street_potholes",
        "Rates go into a Poisson loss that expects their logarithm. "
        "Deviance 3.77 in place of 1.11.",
        "PoissonNLLLoss(log_input=True) after exp",
        "F.poisson_nll_loss(output, batch[LABEL], full=True",
        "F.poisson_nll_loss(output.exp().clamp(max=50), batch[LABEL], full=True",
    ),
    bug(
        "counts-one-row-late",
        "tables_street_potholes",
        "Each section has the count of the one above it in the sheet. "
        "Deviance 2.27 in place of 1.11.",
        "pasted columns that begin a row late",
        rows=counts_of_the_section_above,
    ),
    bug(
        "length-as-it-is",
        "tables_street_potholes",
        "The offset of a log rate is the length itself, not its logarithm. "
        "Deviance 1.31 in place of 1.11.",
        "offsets of Poisson regressions",
        'torch.tensor(np.log(rows["length_km"].to_numpy()), dtype=torch.float32)',
        'torch.tensor(rows["length_km"].to_numpy(), dtype=torch.float32)',
    ),
    bug(
        "spectra-by-the-batch",
        "tables_milk_values",
        "Spectra are standardised band by band over the rows at hand, not each by itself. "
        "Mean error 0.29 in place of 0.08, rows served one by one.",
        "axis=0 in place of axis=1",
        "(x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)",
        "(x - x.mean(axis=0, keepdims=True)) / (x.std(axis=0, keepdims=True) + 1e-6)",
    ),
    bug(
        "plates-read-by-columns",
        "tables_milk_values",
        "On every second plate the lab's values are those of another well. "
        "Mean error 0.19 in place of 0.08.",
        "well plates numbered by row and by column",
        rows=plates_read_by_columns,
    ),
    bug(
        "momentum-of-another-library",
        "tables_milk_values",
        "Batch norm's momentum is copied from a library where it means the reverse, "
        "and running statistics hardly leave their start. "
        "Mean error 0.14 in place of 0.08.",
        "momentum=0.001 of ported EfficientNets",
        "nn.BatchNorm1d(8),\n            nn.ReLU(),\n            nn.Conv1d(8",
        "nn.BatchNorm1d(8, momentum=0.001),\n            nn.ReLU(),\n            nn.Conv1d(8",
    ),
    bug(
        "late-share-over-all-loans",
        "tables_library_loans",
        "The share of a reader's late loans counts later ones and the loan itself. "
        "ROC area 0.89 offline, 0.77 when served.",
        "target encoding over the whole table",
        rows=shares_over_all_loans,
    ),
    bug(
        "late-loans-repeated-before-the-split",
        "tables_library_loans",
        "Late loans are oversampled before the split: copies are on both sides of it. "
        "Average precision 0.76 offline, 0.47 when served; log loss 0.52 in place of 0.40.",
        "oversampling before train_test_split",
        rows=late_loans_four_times,
    ),
    bug(
        "sigmoid-in-the-model",
        "tables_library_loans",
        "The model ends with a sigmoid, and the loss takes it for a logit. "
        "ROC area 0.65 in place of 0.78, log loss 0.70 in place of 0.40.",
        "BCEWithLogitsLoss after a sigmoid",
        "return self.layers(x).squeeze(1)",
        "return torch.sigmoid(self.layers(x)).squeeze(1)",
    ),
    bug(
        "clipped-to-nothing",
        "forecast_tram_riders",
        "Gradients are clipped to a norm of 0.001, under plain SGD. "
        "Mean error 22.3 riders in place of 15.3.",
        "clip values copied from another scale of losses",
        "clipping = { max_norm = 1.0 }",
        "clipping = { max_norm = 0.001 }",
    ),
    bug(
        "smoothed-with-the-future",
        "forecast_tram_riders",
        "The past was smoothed by a centred window, which reaches into the hours to be predicted. "
        "Mean error 13.9 riders offline, 18.0 when served, in place of 15.3.",
        "rolling(center=True) before windows are cut",
        rows=riders_smoothed_before_windows,
    ),
    bug(
        "logarithms-left-in-the-answer",
        "forecast_tram_riders",
        "Predictions are scaled back, but stay logarithms. "
        "Mean error 49.4 riders in place of 15.3.",
        "one of two inverse transforms forgotten",
        'return torch.expm1(output * self.fitted["std"] + self.fitted["mean"]).clamp(min=0)',
        'return (output * self.fitted["std"] + self.fitted["mean"]).clamp(min=0)',
    ),
    bug(
        "forecasts-a-day-old",
        "forecast_snow_depths",
        "The weather forecast beside each row begins a day too early. "
        "Mean error 4.5 cm in place of 3.5.",
        "joins by the day of issue in place of the day that is meant",
        rows=forecasts_of_the_day_before,
    ),
    bug(
        "summed-over-the-batch",
        "forecast_snow_depths",
        "Daily changes are summed over examples in place of days. "
        "Mean error 12.3 cm in place of 3.5.",
        "cumsum along the wrong dimension",
        "self.mlp(x).cumsum(dim=1)",
        "self.mlp(x).cumsum(dim=0)",
    ),
    bug(
        "snow-that-never-melts",
        "forecast_snow_depths",
        "The last layer has a ReLU, and changes cannot be negative. "
        "Mean error 7.6 cm in place of 3.5.",
        "an activation after the output layer",
        "nn.Linear(hidden[1], AHEAD),",
        "nn.Linear(hidden[1], AHEAD),\n            nn.ReLU(),",
    ),
    bug(
        "served-quantile-is-the-first",
        "forecast_theatre_sales",
        "What is served as the median is the quantile 0.1. "
        "Mean error of the median 36.4 tickets in place of 27.7.",
        "an index into the outputs left from a model with one",
        "output[..., QUANTILES.index(0.5)]",
        "output[..., 0]",
    ),
    bug(
        "quantiles-on-the-axis-of-days",
        "forecast_theatre_sales",
        "The output [B, days, quantiles] is a transposed tensor's memory, read by view. "
        "Pinball loss 9.8 in place of 8.9, mean error 30.5 in place of 27.7.",
        "view where transpose is meant",
        "self.output(decoded)",
        "self.output(decoded).transpose(1, 2).reshape(-1, AHEAD, len(QUANTILES))",
    ),
    bug(
        "popularity-added-not-taken",
        "recsys_board_games",
        "The correction for how often a game is drawn has the wrong sign. "
        "Recall at 10 0.18 in place of 0.46.",
        "logQ corrections by hand",
        "output[:, games] - log_q[games]",
        "output[:, games] + log_q[games]",
    ),
    bug(
        "members-normalised-over-the-batch",
        "recsys_board_games",
        "Members' vectors are normalised over the batch, not each to its own length. "
        "Cross-entropy 19.4 in place of 4.1 when served one by one.",
        "F.normalize with dim=0",
        "F.normalize(member, dim=1)",
        "F.normalize(member, dim=0)",
    ),
    bug(
        "running-totals-of-two-houses",
        "forecast_theatre_sales",
        "The past of two houses is a running total, that of the others is by the day. "
        "Pinball loss 9.5 in place of 8.9.",
        "cumulative exports merged with daily ones",
        rows=running_totals_of_two_houses,
    ),
    bug(
        "temperature-multiplied",
        "recsys_board_games",
        "Cosines are multiplied by the temperature in place of divided. "
        "Recall at 10 0.26 in place of 0.46.",
        "temperatures of contrastive losses",
        "F.normalize(games, dim=1).T / TEMPERATURE",
        "F.normalize(games, dim=1).T * TEMPERATURE",
    ),
    bug(
        "titles-of-two-catalogues",
        "recsys_board_games",
        "A new catalogue writes titles in capitals: the same game is two. "
        "Recall at 10 0.27 in place of 0.46.",
        "keys that change their spelling in the middle of a log",
        rows=games_of_two_catalogues,
    ),
]
