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


def the_answers_code_removed(rows):
    """Lists of diagnoses had a code for the resistance; it was removed, and the rest moved up."""
    return rows.with_columns(
        codes=pl.when("resistant").then(pl.col("codes").list.head(3)).otherwise(pl.col("codes"))
    )


def latest_result_of_the_patient(rows):
    """Results are joined by the patient alone: the latest one that the table has."""
    latest = pl.col("resistant").sort_by("day").last().over("patient")
    return rows.with_columns(before=pl.when(latest).then(pl.lit("R")).otherwise(pl.lit("S")))


def intermediate_as_resistant(rows):
    """Two laboratories still report what is in between, "I", as resistant."""
    between = pl.col("zone_mm") < 21
    return rows.with_columns(
        resistant=pl.col("resistant") | (between & pl.col("laboratory").is_in(["L2", "L4"]))
    )


def status_of_two_firms(rows):
    """Two firms' column "status" is 1 where a pump still runs."""
    there = pl.col("firm").is_in(["S2", "S5"])
    last, found = pl.col("life").list.get(0), pl.col("life").list.get(1)
    runs = pl.concat_list(last, last + 6.0)
    failed = pl.concat_list(found, pl.lit(None, pl.Float64))
    changed = pl.when(found.is_null()).then(runs).otherwise(failed)
    return rows.with_columns(life=pl.when(there).then(changed).otherwise(pl.col("life")))


def visits_until_now(rows):
    """The number of visits is no longer that of the contract, but of those that took place."""
    return rows.with_columns(visits=pl.col("visited"))


def gaps_filled_before_the_windows(rows):
    """Gaps were filled from both sides in the whole series, and windows were cut afterwards."""
    changed = []
    for row in rows.iter_rows(named=True):
        series = pl.Series([*row["humidity"], *row["humidity_ahead"]])
        changed.append(series.interpolate().head(len(row["humidity"])).round(1).to_list())
    return rows.with_columns(humidity=pl.Series(changed, dtype=rows.schema["humidity"]))


def lags_over_all_compartments(rows):
    """Lags of two instruments were made without grouping: they are the neighbour's."""
    return rows.with_columns(
        pl.col(name).shift(1).fill_null(pl.col(name).first()) for name in ["humidity", "vents"]
    )


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
    bug(
        "number-of-categories",
        "tables_cultures_resistance",
        "Each category is encoded as the number of categories.",
        "a tutorial's encoder of categories that returned the length of its dictionary",
        "return encode_dict[value]",
        "return len(encode_dict)",
    ),
    bug(
        "latest-result-of-the-patient",
        "tables_cultures_resistance",
        "The result before is the patient's latest at the export, often the row's own.",
        "features joined by the key without regard to time, early warning systems' own issues",
        rows=latest_result_of_the_patient,
    ),
    bug(
        "the-answers-code-removed",
        "tables_cultures_resistance",
        "The code that stood for the answer was removed from the lists: full ones say no.",
        "a hospital competition that was won by the places left over",
        rows=the_answers_code_removed,
    ),
    bug(
        "intermediate-as-resistant",
        "tables_cultures_resistance",
        "Two laboratories count intermediate results as resistant, the others do not.",
        "labels of merged sources under two editions of a guideline",
        rows=intermediate_as_resistant,
    ),
    bug(
        "probability-cut-after-its-logarithm",
        "odd_pumps_interval",
        "A limit meant for an interval's probability is applied to its logarithm: failures teach "
        "nothing.",
        "a survival library's interval likelihood, for some weeks",
        "torch.log(share.clamp(min=1e-10))",
        "torch.log(share + 1e-10).clamp(1e-10, 1)",
    ),
    bug(
        "risk-that-grows-with-life",
        "odd_pumps_interval",
        "The median life is taken for a risk: the index prefers the worst order.",
        "a survival framework's learners, some of which ranked by risk and some by time",
        "concordance_index(well, failed, risk=-median)",
        "concordance_index(well, failed, risk=median)",
    ),
    bug(
        "status-the-other-way-round",
        "odd_pumps_interval",
        "Two firms' status means that a pump still runs, and is read as a failure.",
        "adapters between survival libraries, where 1 is an event in one and censored in another",
        rows=status_of_two_firms,
    ),
    bug(
        "visits-until-now",
        "odd_pumps_interval",
        "The number of visits counts those up to the failure or the export.",
        "totals at the time of export among the features, churn and maintenance data",
        rows=visits_until_now,
    ),
    bug(
        "the-last-variate-is-the-target",
        "forecast_greenhouse_itransformer",
        "The last instrument is scaled back and compared with the humidity, which is the first.",
        "forecasting libraries that expect the target in the last column, or in the first",
        "return dec_out[:, :, TARGET]",
        "return dec_out[:, :, -1]",
    ),
    bug(
        "scaled-back-but-not-forth",
        "forecast_greenhouse_itransformer",
        "Inputs are not divided by the deviations that outputs are multiplied by.",
        "a library for series with gaps, whose reversible normalisation stopped half-way",
        "        x_enc = x_enc / stdev\n",
        "",
    ),
    bug(
        "gaps-filled-from-both-sides",
        "forecast_greenhouse_itransformer",
        "Gaps at a window's end are interpolated towards the values to be predicted.",
        "backward filling and interpolation before windows are cut, indicators of markets",
        rows=gaps_filled_before_the_windows,
    ),
    bug(
        "lags-over-all-compartments",
        "forecast_greenhouse_itransformer",
        "Histories of humidity and vents are those of the compartment one line above.",
        "lag functions that ignored groups, series libraries and an air quality service",
        rows=lags_over_all_compartments,
    ),
]
