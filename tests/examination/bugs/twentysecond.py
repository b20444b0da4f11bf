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
]
