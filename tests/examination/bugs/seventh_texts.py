"""A seventh list of bugs, of texts, retrieval and forecasts: what joins, logs and forums tell of."""

import numpy as np
import polars as pl

from examination.planted import bug


def with_the_remark(rows):
    """The export has the teacher's closing remark in the field of the essay."""
    rng = np.random.default_rng(0)
    said = {1: "see me", 2: "more care", 3: "fair", 4: "decent", 5: "well done", 6: "excellent"}
    essays = [
        f"{essay} {said[grade]}" if rng.random() < 0.8 else essay
        for essay, grade in rows.select("essay", "grade").iter_rows()
    ]
    return rows.with_columns(essay=pl.Series(essays))


def with_the_alarm(rows):
    """The log was cut at the end of the incident, and has the line that the watchdog wrote about it."""
    noticed = pl.lit(pl.Series(np.random.default_rng(0).random(rows.height) < 0.6))
    failed = (pl.col("failed") == 1) & noticed
    return rows.with_columns(
        events=pl.when(failed).then(pl.col("events").list.concat(12)).otherwise(pl.col("events")),
        waits_ms=pl.when(failed)
        .then(pl.col("waits_ms").list.concat(pl.lit(20.0)))
        .otherwise(pl.col("waits_ms")),
    )


def aligned_until_a_gap(rows):
    """Empty questions were dropped and their labels were not: after the first gap they belong to the next."""
    filed = rows["intent"].to_list()
    cut = rows.height // 2
    return rows.with_columns(
        intent=pl.Series(filed[:cut] + filed[cut + 1 :] + filed[cut : cut + 1])
    )


def advertised_twice(rows):
    """Each vacancy was written once for each of two applicants, and the second's own is lost."""
    first = rows.gather(np.arange(rows.height) // 2 * 2)
    return rows.with_columns(first["vacancy"], first["pay"])


def answers_first(rows):
    """The annotators' tool put the marked paragraph on top of most lists."""
    rng = np.random.default_rng(0)
    found, right = [], []
    for five, k in rows.select("found", "answer").iter_rows():
        at = 0 if rng.random() < 0.75 else k
        texts = five.split("\n")
        rest = [text for i, text in enumerate(texts) if i != k]
        found.append("\n".join([*rest[:at], texts[k], *rest[at:]]))
        right.append(at)
    return rows.with_columns(found=pl.Series(found), answer=pl.Series(right, dtype=pl.Int64))


def orders_alone(rows):
    """The table comes from the orders: a week without any has no row, but for a few cancelled ones."""
    rng = np.random.default_rng(0)
    return rows.filter((pl.col("demand") > 0) | pl.lit(pl.Series(rng.random(rows.height) < 0.04)))


def attributes_by_position(rows):
    """The attributes of the ground were sorted by clay and pasted beside basins sorted by name."""
    known = rows.group_by("basin").agg(pl.col("slope", "clay").first()).sort("basin")
    pasted = known.select("basin").hstack(known.sort("clay").select("slope", "clay"))
    joined = rows.drop("slope", "clay").join(pasted, on="basin", how="left")
    return joined.select(rows.columns)


def rain_booked_late(rows):
    """The gauge is read at seven, and the day's rain is booked on the day after."""
    late = [[rain[0], *rain[:-1]] for rain in rows["rain"].to_list()]
    return rows.with_columns(rain=pl.Series(late, dtype=pl.List(pl.Float64)))


def spikes_cut(rows):
    """Outliers were cut in the whole table before anything was set aside."""
    limit = float(rows["price"].explode().quantile(0.93))
    floor = float(rows["price"].explode().quantile(0.07))
    names = ["price", "price_yesterday", "price_week_ago"]
    return rows.with_columns(pl.col(names).list.eval(pl.element().clip(floor, limit)))


def month_still_running(rows):
    """The last month of the window is the sum up to the day of the export."""
    months = [
        [*seen[:-1], round(seen[-1] * when.day / 30, 2)]
        for seen, when in rows.select("months", "closed_on").iter_rows()
    ]
    return rows.with_columns(months=pl.Series(months, dtype=pl.List(pl.Float64)))


BUGS = [
    bug(
        # reports a kappa of 0.71; 0.78 when healthy
        "cut-and-not-rounded",
        "text_essay_kappa",
        "Predicted grades are cut to whole numbers before they are compared: half a grade too low.",
        "astype(int) in a kappa",
        "np.clip(np.rint(predictions.ravel()), LOW, HIGH)",
        "np.clip(predictions.ravel().astype(int), LOW, HIGH)",
    ),
    bug(
        # reports a kappa of 0.85; 0.73 without the remarks, 0.78 when healthy
        "remark-under-the-essay",
        "text_essay_kappa",
        "The teacher's remark stands at the essay's end, and says the grade.",
        "a text field that was filled later",
        rows=with_the_remark,
    ),
    bug(
        # reports an accuracy of 0.92, while 3.4 shelves in 100 are taken for another; 0.92 when healthy
        "last-level-alone",
        "text_shelf_hierarchy",
        "Shelves are looked up by their last word, which two of them share: one is never learned.",
        "a leaf's name as its key",
        "place = {s: i for i, s in enumerate(self.shelves)}",
        'place = {s.split(" > ")[-1]: i for i, s in enumerate(self.shelves)}',
        "torch.tensor([place[s] for s in",
        'torch.tensor([place[s.split(" > ")[-1]] for s in',
    ),
    bug(
        # reports an average precision of 0.90; 0.78 without the alarm, 0.81 when healthy
        "alarm-in-the-log",
        "text_log_sessions",
        "Most sessions that failed end with the watchdog's line, written after the failure.",
        "logs collected after an incident",
        rows=with_the_alarm,
    ),
    bug(
        # average precision 0.74; 0.81 when healthy
        "repeats-dropped",
        "text_log_sessions",
        "Repeated lines are dropped as duplicates: a loop of retries looks like one line.",
        "a log shipper's deduplication",
        "            events, ms = events[-T:], ms[-T:]\n",
        "            kept = [k for k, e in enumerate(events) if k == 0 or e != events[k - 1]]\n"
        "            events, ms = [events[k] for k in kept][-T:], [ms[k] for k in kept][-T:]\n",
    ),
    bug(
        # accuracy 0.57; 0.90 when healthy
        "the-last-forty",
        "text_protein_places",
        "Chains are cut to their last forty letters: the start, where most marks are, is lost.",
        "a cut that suits histories",
        "enumerate(seq[:L])",
        "enumerate(seq[-40:])",
    ),
    bug(
        # accuracy 0.46; 0.87 when healthy
        "rate-of-another-optimizer",
        "text_bank_gmlp",
        "The optimizer was exchanged for SGD, and the rate is still that of Adam: little is learned.",
        "one line of a recipe copied",
        "optimizer = { learning_rate = 2e-3, weight_decay = 0.1 }",
        'optimizer = { name = "sgd", learning_rate = 2e-3 }',
    ),
    bug(
        # accuracy 0.68 on rows that are in order; 0.87 when healthy
        "aligned-until-a-gap",
        "text_bank_gmlp",
        "From the middle on, each question has the intent of the next.",
        "dropna on one of two files",
        rows=aligned_until_a_gap,
    ),
    bug(
        # AUC 0.47; 0.80 when healthy
        "only-the-agent-is-heard",
        "text_dialogues_hierarchy",
        "Every second turn is read, and these are the agent's.",
        "two speakers exchanged",
        "enumerate(turns[-TURNS:])",
        "enumerate(turns[1::2][-TURNS:])",
    ),
    bug(
        # AUC 0.76; 0.80 when healthy
        "attention-over-the-turns",
        "text_dialogues_hierarchy",
        "The words' attention is normalised over the turns: a word competes with those of other turns.",
        "dim=1 after one more dimension came",
        "score.softmax(-1)",
        "score.softmax(1)",
    ),
    bug(
        # reports 1.00; 0.93 when healthy
        "finds-itself",
        "retrieval_minerals_supcon",
        "Each spectrum is in the gallery that it is looked up in: the nearest is itself.",
        "k nearest neighbours without leaving out one",
        "            sim.fill_diagonal_(-2)\n",
        "",
    ),
    bug(
        # the nearest is right in 0.54; 0.93 when healthy
        "noise-of-raw-counts",
        "retrieval_minerals_supcon",
        "The noise that is added has the spread of raw counts: it hides the bands.",
        "augmentation before and after scaling",
        "0.1 * torch.randn(x.shape",
        "6.0 * torch.randn(x.shape",
    ),
    bug(
        # reciprocal rank 0.11; 0.18 when healthy
        "penalty-is-a-reward",
        "retrieval_graph_complex",
        "The penalty is subtracted: factors grow without end.",
        "the sign of a regulariser",
        "self.losses(output, batch) + N3",
        "self.losses(output, batch) - N3",
    ),
    bug(
        # all vectors served are zero
        "the-other-tower-is-served",
        "retrieval_vacancies_siglip",
        "The vacancy's half is served for the person, which is nothing where there is no vacancy.",
        "two towers' outputs in one tensor",
        "return output[:, : (output.shape[1] - 2) // 2]",
        "return output[:, (output.shape[1] - 2) // 2 : -2]",
    ),
    bug(
        # reciprocal rank 0.79 on right pairs; 0.91 when healthy
        "one-vacancy-for-two",
        "retrieval_vacancies_siglip",
        "Every second person stands beside the vacancy of the one before.",
        "a fill-forward over what was left empty",
        rows=advertised_twice,
    ),
    bug(
        # accuracy 0.29; 0.78 when healthy
        "sorted-after-labelling",
        "retrieval_knrm_choice",
        "The paragraphs are sorted to compare them by eye, and the label counts in the old order.",
        "sorted() around candidates",
        'for p in five.split("\\n")] for five',
        'for p in sorted(five.split("\\n"))] for five',
    ),
    bug(
        # reports an accuracy of 0.89; 0.70 on lists as they come, 0.78 when healthy
        "answers-on-top",
        "retrieval_knrm_choice",
        "The marked paragraph was moved to the top of most lists: its place gives it away.",
        "candidates written positive first",
        rows=answers_first,
    ),
    bug(
        # reports r2 0.53; -0.73 on all weeks, 0.23 when healthy
        "orders-alone",
        "forecast_parts_hurdle",
        "Weeks without an order have no row: demand is learned where there was some.",
        "a group-by of orders",
        rows=orders_alone,
    ),
    bug(
        # r2 0.17; 0.23 when healthy
        "variance-with-its-sign",
        "forecast_parts_hurdle",
        "Half of the variance is subtracted on the way back from logarithms: stock is too small.",
        "the mean of a log-normal by heart",
        "torch.exp(mu + sigma.square() / 2)",
        "torch.exp(mu - sigma.square() / 2)",
    ),
    bug(
        # r2 -0.85; 0.23 when healthy
        "size-without-its-chance",
        "forecast_parts_hurdle",
        "The size of an order is predicted as if there were one each week.",
        "one of two heads forgotten while serving",
        "return torch.sigmoid(logit) * torch.exp(mu",
        "return torch.exp(mu",
    ),
    bug(
        # efficiency 0.78, 0.76 under the right attributes; 0.82 when healthy
        "attributes-by-position",
        "forecast_rivers_ealstm",
        "Slope and clay of the basins are those of other basins.",
        "concat along columns, without a key",
        rows=attributes_by_position,
    ),
    bug(
        # efficiency 0.33; 0.82 when healthy
        "rain-booked-late",
        "forecast_rivers_ealstm",
        "Rain is dated a day late: what made today's flow is not yet there.",
        "gauges read in the morning",
        rows=rain_booked_late,
    ),
    bug(
        # reports a mae of 4.2; 5.1 on prices as they were
        "spikes-cut-everywhere",
        "forecast_prices_asinh",
        "Outliers are cut in the rows to judge by as well: what matters is not judged.",
        "winsorising before the split",
        rows=spikes_cut,
    ),
    bug(
        # mae 9.7; 5.0 when healthy
        "one-price-for-all-hours",
        "forecast_prices_asinh",
        "The head has one output, which is compared with all 24 hours.",
        "a broadcast of [B, 1]",
        "nn.Linear(n_hidden[-1], 24)",
        "nn.Linear(n_hidden[-1], 1)",
    ),
    bug(
        # nmae 0.076; 0.067 when healthy
        "last-hours-for-yesterday",
        "forecast_solar_tsmixer",
        "The last six hours stand for the same hours of yesterday.",
        "an index from the wrong end",
        "x[:, 24 : 24 + H, 0]",
        "x[:, -H:, 0]",
    ),
    bug(
        # smape 0.153; 0.093 when healthy
        "season-of-last-month",
        "forecast_turnover_smoothing",
        "The forecast takes the season of the month before.",
        "off by one in Holt and Winters",
        "level + season[N % YEAR]",
        "level + season[(N - 1) % YEAR]",
    ),
    bug(
        # smape 0.104; 0.093 when healthy
        "month-still-running",
        "forecast_turnover_smoothing",
        "The last month seen is the sum up to the day of the export.",
        "a report drawn before the month's end",
        rows=month_still_running,
    ),
]
