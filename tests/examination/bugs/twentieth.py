"""A twentieth list of bugs: silent ones that public projects found and repaired, transplanted."""

import numpy as np
import polars as pl

from examination.planted import bug


def own_question_counted(rows):
    """The week's questions are counted when the log is exported, that of the row included."""
    own = pl.col("outcome").list.get(1)
    return rows.with_columns(asked_this_week=pl.col("asked_this_week") + own)


def clocks_of_two_sites(rows):
    """Two sites' loggers run on universal time, the reference on local summer time."""
    late = pl.col("site").is_in(["Damm", "Markt"])
    return rows.with_columns(
        pl.when(late).then(pl.col(name).shift(1).over("site")).otherwise(pl.col(name)).alias(name)
        for name in ["pm_quarters", "validity", "humidity"]
    ).filter(pl.col("validity").is_not_null())


def directions_averaged(rows):
    """The weather service averages ten-minute directions as numbers: 350 and 10 make 180."""
    rng = np.random.default_rng(20)
    off = (rows["wind_from"].to_numpy() + 180) % 360 - 180
    tens = off[:, None] + rng.normal(0, 25, (rows.height, 12))
    return rows.with_columns(wind_from=pl.Series(np.mod(tens, 360).mean(axis=1).round(-1)))


def operations_that_took_place(rows):
    """The table of operations is exported afterwards: what took place, emergencies included."""
    return rows.with_columns(planned_ahead=pl.col("performed_ahead"))


def plans_filled_backwards(rows):
    """The theatre's system keeps plans for 92 days; before, its first ones are filled in."""
    begin = rows["day"].max() - pl.duration(days=92)
    early = pl.col("day") < begin
    kept = rows.filter(~early).sort("day").unique("hospital", keep="first", maintain_order=True)
    first = kept.select("hospital", then=pl.col("planned_past").list.first())
    rows = rows.join(first, on="hospital", how="left", maintain_order="left")
    filled = (
        pl.when(early)
        .then(pl.col("then").repeat_by(pl.col(name).list.len()))
        .otherwise(pl.col(name))
        .alias(name)
        for name in ["planned_past", "planned_ahead"]
    )
    return rows.with_columns(filled).drop("then")


def a_study_already_normalised(rows):
    """Kyoto's cells are to be had only as counts per hundred, each cell brought to one depth."""
    there = pl.col("lab") == "kyoto"
    return rows.with_columns(
        pl.when(there)
        .then(pl.col(name).list.eval((pl.element() * 100 / pl.element().sum()).round(2)))
        .otherwise(pl.col(name).cast(pl.List(pl.Float64)))
        .alias(name)
        for name in ["umi", "umi_again"]
    )


def clicked_products_first(rows):
    """The log is joined from clicks and impressions: clicked products are listed first."""
    lists = [c for c in rows.columns if rows.schema[c].base_type() is pl.List and c != "shown_at"]
    changed = []
    for row in rows.iter_rows(named=True):
        order = np.argsort(-np.array(row["clicks"]), kind="stable")
        changed.append(row | {name: [row[name][k] for k in order] for name in lists})
    return pl.DataFrame(changed, schema=rows.schema)


def joined_with_reviews(rows):
    """Products are joined with their reviews: each is there as often as it was reviewed."""
    rng = np.random.default_rng(20)
    lists = [c for c in rows.columns if rows.schema[c].base_type() is pl.List]
    changed = []
    for row in rows.iter_rows(named=True):
        times = [1 if s is None else 1 + int(rng.poisson(0.8)) for s in row["stars"]]
        order = np.repeat(np.arange(len(times)), times)
        new = {name: [row[name][k] for k in order] for name in lists}
        new["stars"] = [
            None if s is None else float(np.clip(np.round(rng.normal(s, 0.9)), 1, 5))
            for s in new["stars"]
        ]
        changed.append(row | new)
    return pl.DataFrame(changed, schema=rows.schema)


BUGS = [
    bug(
        "product-of-logits",
        "recsys_lettings_esmm",
        "The logits of both towers are multiplied, not their probabilities.",
        "a multi-task benchmark's ESMM: one task at chance while the other was good, and reversed",
        "p_both = open_logit.sigmoid() * ask_logit.sigmoid()",
        "p_both = (open_logit * ask_logit).sigmoid()",
    ),
    bug(
        "sigmoid-twice",
        "recsys_lettings_esmm",
        "The product of probabilities goes into a loss that takes it for a logit.",
        "losses with logits on sigmoid outputs, issues of recommender libraries and forums",
        'loss_both = F.binary_cross_entropy(p_both.clamp(1e-6, 1 - 1e-6), asked, reduction="none")',
        'loss_both = F.binary_cross_entropy_with_logits(p_both, asked, reduction="none")',
    ),
    bug(
        "second-tower-on-its-own",
        "recsys_lettings_esmm",
        "The second tower learns questions of all impressions; predict still multiplies it.",
        "a recommender library's trainer that summed other losses than ESMM's two",
        "p_both = open_logit.sigmoid() * ask_logit.sigmoid()",
        "p_both = ask_logit.sigmoid()",
    ),
    bug(
        "own-question-counted",
        "recsys_lettings_esmm",
        "The number of this week's questions includes the one that is to be predicted.",
        "a recommender library's example that left the conversion label among the features",
        rows=own_question_counted,
    ),
    bug(
        "no-data-as-a-reading",
        "tables_air_sensors",
        "What the flags declare invalid, -999 and 0, enters the hour's mean as a concentration.",
        "a client of European air data: dropna keeps -999, and zeros of faulty instruments",
        'valid = np.stack(df["validity"].to_list()) > 0  # not in maintenance, calibration, faulty',
        "valid = ~np.isnan(quarters)",
    ),
    bug(
        "sine-of-degrees",
        "tables_air_sensors",
        "Sine and cosine take degrees for radians: neighbouring directions are scattered.",
        "wind directions in a wind-energy library and in climatology code, before their repair",
        'angle = np.deg2rad(df["wind_from"])',
        'angle = df["wind_from"]',
    ),
    bug(
        "two-sites-on-universal-time",
        "tables_air_sensors",
        "Two sites' loggers run two hours apart from the reference beside them.",
        "stations with a wrong offset from UTC, issues of air quality archives",
        rows=clocks_of_two_sites,
    ),
    bug(
        "directions-averaged-as-numbers",
        "tables_air_sensors",
        "Wind directions are means of numbers: wind from the north is reported as from the south.",
        "averaging of directions in wind measurement libraries",
        rows=directions_averaged,
    ),
    bug(
        "median-first",
        "forecast_blood_mqrnn",
        "Quantiles are named with the median first, and learned in ascending order.",
        "a forecasting library's fusion transformer, whose outputs were sorted and names were not",
        "QUANTILES = (0.1, 0.5, 0.9)",
        "QUANTILES = (0.5, 0.1, 0.9)",
    ),
    bug(
        "arguments-exchanged",
        "forecast_blood_mqrnn",
        "The quantile loss gets target and prediction exchanged: its tails are, too.",
        "a library for series with gaps that called its quantile loss in the wrong order",
        "self.quantile_output.loss(output, batch[LABEL].unsqueeze(-1))",
        "self.quantile_output.loss(batch[LABEL].unsqueeze(-1), output)",
    ),
    bug(
        "operations-that-took-place",
        "forecast_blood_mqrnn",
        "Operations known ahead are those that took place, emergencies included.",
        "forecasts judged with observed weather in place of forecast, epidemics and load",
        rows=operations_that_took_place,
    ),
    bug(
        "plans-filled-backwards",
        "forecast_blood_mqrnn",
        "Plans reach back 92 days; before, each hospital's first plan is filled in, day by day.",
        "an energy manager's forecaster: weather beyond the service's limit was filled backwards",
        rows=plans_filled_backwards,
    ),
    bug(
        "mean-for-dispersion",
        "odd_cells_scvi",
        "The negative binomial gets mean and inverse dispersion in each other's place.",
        "a single-cell library whose distributions switched the two arguments",
        "-log_nb_positive(x, px_rate, theta)",
        "-log_nb_positive(x, theta, px_rate)",
    ),
    bug(
        "library-in-logarithms",
        "odd_cells_scvi",
        "Shares of genes are multiplied by the logarithm of the library size.",
        "questions about a single-cell decoder: in which units is the library",
        "px_rate = torch.exp(library) * px_scale",
        "px_rate = library * px_scale",
    ),
    bug(
        "divergence-of-the-batch",
        "odd_cells_scvi",
        "The divergence is summed over all cells that come together, and each pays for all.",
        "a repository of point processes whose sum had lost its dimension",
        "prior).sum(dim=1)",
        "prior).sum()",
    ),
    bug(
        "a-study-already-normalised",
        "odd_cells_scvi",
        "One laboratory's counts are normalised to one depth, and are read as counts.",
        "integration of studies that can only be had normalised, single-cell forums",
        rows=a_study_already_normalised,
    ),
    bug(
        "softmax-over-the-searches",
        "retrieval_shelf_ips",
        "The softmax goes over the searches that come together, not over a list's products.",
        "softmax along the first dimension, repaired in ranking and attention code",
        "scores.log_softmax(dim=1)",
        "scores.log_softmax(dim=0)",
    ),
    bug(
        "rarely-seen-clicks-count-less",
        "retrieval_shelf_ips",
        "Clicks are multiplied by how often a place is looked at, in place of divided by it.",
        "inverse propensities, corrected in libraries for causal inference and search",
        "weight = batch[LABEL] / looked_at",
        "weight = batch[LABEL] * looked_at",
    ),
    bug(
        "products-once-per-review",
        "retrieval_shelf_ips",
        "A join with reviews repeats a product for each of them, clicks included.",
        "joins that multiply rows, write-ups about features of events",
        rows=joined_with_reviews,
    ),
    bug(
        "order-for-ranks",
        "retrieval_shelf_ips",
        "The metric takes the indices of the sorted products for their ranks.",
        "argsort taken for ranks, questions about ranking metrics by hand",
        ".argsort(dim=1, descending=True).argsort(dim=1)",
        ".argsort(dim=1, descending=True)",
    ),
    bug(
        "clicked-products-first",
        "retrieval_shelf_ips",
        "Lists hold clicked products first; their places are lost, and numbered anew.",
        "training files with the right answers first, sorted data in competitions",
        rows=clicked_products_first,
    ),
]
