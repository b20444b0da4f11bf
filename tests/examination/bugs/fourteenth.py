"""A fourteenth list of bugs: ordinary slips in tables, forecasts, rates, towers and sequences of clicks."""

import numpy as np
import polars as pl

from examination.data import numbered
from examination.planted import bug


def visits_after_the_bill(rows):
    """The window of thirty days runs forward from the bill: who leaves in it comes less often."""
    rng = np.random.default_rng(0)
    visits, left = rows["visits_30d"].to_numpy(), rows["churned"].to_numpy()
    after = rng.poisson(np.where(left == 1, 0.4, 1.0) * (0.5 * visits + 1.5))
    return rows.with_columns(visits_30d=pl.Series(after))


def labels_not_ripe(rows):
    """The export is of the last day of bills: of the last sixty days, who leaves later is not known to have left."""
    rng = np.random.default_rng(0)
    last = rows["billed_on"].max()
    seen = (pl.lit(last) - pl.col("billed_on")).dt.total_days() / 60
    is_early = pl.lit(pl.Series(rng.random(rows.height))) < seen
    return rows.with_columns(churned=pl.when(is_early).then(pl.col("churned")).otherwise(0))


def mean_to_the_target(rows):
    """The rolling mean is taken at the target day: what is asked for is a seventh of it."""
    return rows.with_columns(mean_7=(6 * pl.col("mean_7") + pl.col("sold")) / 7)


def counted_from_one(rows):
    """Three presses count their shots from one: the laboratory's results are joined to the shot after."""
    later = ["press-4", "press-5", "press-6"]
    moved = pl.col("quality").shift(1).over("press")
    quality = pl.when(pl.col("press").is_in(later)).then(moved).otherwise(pl.col("quality"))
    return rows.with_columns(quality=quality).drop_nulls("quality")


def joined_with_the_claims(rows):
    """Policies are joined with the file of claims: a policy with three claims is there three times."""
    times = pl.col("claims").clip(1)
    many = rows.drop("row_id").with_columns(again=pl.int_ranges(0, times)).explode("again")
    return numbered(many.drop("again").sample(fraction=1.0, shuffle=True, seed=3))


def bonus_after_the_year(rows):
    """The bonus class is the one of the renewal: each claim of the year has moved it by two."""
    return rows.with_columns(bonus_class=(pl.col("bonus_class") + 2 * pl.col("claims")).clip(0, 7))


def negatives_keep_attributes(rows):
    """Negatives are copies of a play in which the show's name alone is exchanged."""
    played = rows.filter(pl.col("played") == 1)
    attributes = ["category", "publisher", "minutes"]
    own = played.unique(["listener", "offered_at"], maintain_order=True)
    joined = rows.drop(attributes).join(
        own.select("listener", "offered_at", *attributes), on=["listener", "offered_at"], how="left"
    )
    return joined.select(rows.columns).sort("row_id")


def pause_until_the_next(rows):
    """Pauses are differences to the next click; where there is none, 0 is filled in."""
    rng = np.random.default_rng(0)
    ends = np.exp(rng.normal(2.9, 1.1, rows.height)).round(1)
    pauses = [
        [*seen[1:], 0.0 if then == "leave" else float(end)]
        for seen, then, end in zip(rows["pauses"].to_list(), rows["next_step"], ends, strict=True)
    ]
    return rows.with_columns(pauses=pl.Series(pauses))


BUGS = [
    bug(
        # shows an AUC of 0.84, is 0.65 on visits before the bill; 0.69 when healthy
        "visits-after-the-bill",
        "tables_gym_members",
        "Visits of thirty days are counted from the bill on, not up to it.",
        "a rolling window whose side was exchanged",
        rows=visits_after_the_bill,
    ),
    bug(
        # AUC 0.675; 0.689 when healthy
        "embeddings-of-no-width",
        "tables_gym_members",
        "The rule for the width of an embedding gives 0 for few categories: club, plan and channel are lost.",
        "n // 50 from a table of millions, used on small ones",
        "min(10, (n + 1) // 2)",
        "min(10, n // 50)",
    ),
    bug(
        # shows a log loss of 0.324, is 0.345 once the two months are over
        "labels-not-ripe",
        "tables_gym_members",
        "Members billed in the last two months cannot have left yet, and count as loyal.",
        "labels of a window that is not over",
        rows=labels_not_ripe,
    ),
    bug(
        # the class named `repaid` is `default`; metrics do not read names
        "names-in-the-order-of-the-brief",
        "tables_loan_outcomes_bins",
        "Probabilities are served under names in an order of their own; codes are in the order of the alphabet.",
        "target_names written by hand beside a LabelEncoder",
        'return self.fitted["classes"]',
        'return ["repaid", "late", "default"]',
    ),
    bug(
        # balanced accuracy 0.34, as by chance; 0.52 when healthy
        "weights-by-frequency",
        "tables_loan_outcomes_bins",
        "Weights come in the order of value_counts, codes in the order of the alphabet: the rare class weighs least.",
        "1 / value_counts() as class weights",
        'classes, counts = np.unique(df["outcome"].to_numpy(), return_counts=True)',
        'classes = np.unique(df["outcome"].to_numpy())\n'
        '        counts = df["outcome"].value_counts(sort=True)["count"].to_numpy()',
    ),
    bug(
        # balanced accuracy 0.50, log loss 0.92; 0.52 and 0.87 when healthy
        "edges-rounded",
        "tables_loan_outcomes_bins",
        "The edges of bins are rounded for the eye: the rate by income is below one, and has one bin.",
        "round() on the quantiles of all columns",
        "np.unique(cuts).tolist()",
        "np.unique(cuts.round()).tolist()",
    ),
    bug(
        # wape 0.309; 0.297 when healthy
        "weekday-of-the-issue",
        "forecast_kiosk_horizons",
        "The weekday is that of the day of issue, not of the day that is forecast.",
        "calendar features of the wrong date in a direct forecast",
        "weekday=target_day.dt.weekday() - 1",
        'weekday=pl.col("issued_on").dt.weekday() - 1',
    ),
    bug(
        # wape 0.81; 0.30 when healthy
        "unscaled-after-the-exponential",
        "forecast_kiosk_horizons",
        "Predictions take back the logarithm first and the scaling last; it was done in this order, too.",
        "the two halves of an inverse transform in the wrong order",
        "torch.expm1(output * std + mean)",
        "(torch.expm1(output) * std + mean)",
    ),
    bug(
        # shows a loss of 0.273 (0.293 when healthy), wape 0.349 on means as they are on the day of issue; 0.297 when healthy
        "mean-up-to-the-target",
        "forecast_kiosk_horizons",
        "The mean of seven days ends with the day that is forecast.",
        "rolling without shift",
        rows=mean_to_the_target,
    ),
    bug(
        # mean r2 -12; 0.94 when healthy
        "one-scale-for-three",
        "tables_moulding_three_outputs",
        "Mean and deviation are of all three outputs together: grams, millimetres and warp share one scale.",
        "axis forgotten in mean and std",
        '"y_mean": y.mean(axis=0).tolist(),\n            "y_std": y.std(axis=0).tolist(),',
        '"y_mean": float(y.mean()),\n            "y_std": float(y.std()),',
    ),
    bug(
        # mean r2 0.50 on the parts' own quality; 0.94 when healthy
        "counted-from-one",
        "tables_moulding_three_outputs",
        "The quality of three presses is that of the shot before.",
        "counters from zero and from one, joined",
        rows=counted_from_one,
    ),
    bug(
        # mean r2 0.60; 0.94 when healthy
        "scaled-by-other-columns",
        "tables_moulding_three_outputs",
        "Sensors are read in the order of their names, and scaled in the order of the list.",
        "sorted columns beside a list by hand",
        '"sensors": torch.tensor(rows.select(SENSORS)',
        '"sensors": torch.tensor(rows.select(sorted(SENSORS))',
    ),
    bug(
        # shows a deviance of 0.82, is 0.99 on rates, which it predicts a seventh too low
        "claims-not-divided",
        "tables_home_claims_rate",
        "The target is the number of claims, not claims by exposure: weights remain, rates come out too low.",
        "sample_weight=exposure with counts as the target",
        'rows["claims"].to_numpy() / exposure',
        'rows["claims"].to_numpy()',
    ),
    bug(
        # deviance 1.03 on policies as they are; 0.99 when healthy
        "join-multiplies-policies",
        "tables_home_claims_rate",
        "A policy is there once for each of its claims, each time with all of them.",
        "a left join with a table of several rows per key",
        rows=joined_with_the_claims,
    ),
    bug(
        # shows a deviance of 0.68, is 1.18 on the class before the year; 0.99 when healthy
        "bonus-of-the-renewal",
        "tables_home_claims_rate",
        "The bonus class is that after the year whose claims are predicted.",
        "features made from the table as it is today",
        rows=bonus_after_the_year,
    ),
    bug(
        # deviance 1.10 when served, as by chance; 0.99 when healthy
        "columns-in-the-order-of-the-keys",
        "tables_home_claims_rate",
        "One-hot columns come in the order of a dictionary, which JSON sorts: a loaded model reads other columns.",
        "a dictionary's items as the order of columns; met while this list was written",
        'for c in CATEGORIES:\n            levels = self.fitted["one_hot"][c]',
        'for c, levels in self.fitted["one_hot"].items():',
    ),
    bug(
        # AUC 0.735; 0.808 when healthy
        "pretrained-and-frozen",
        "recsys_podcasts_dot",
        "from_pretrained freezes by default: all embeddings stay as they were drawn.",
        "nn.Embedding.from_pretrained without freeze=False",
        "torch.randn(size, dim) * 0.1, freeze=False",
        "torch.randn(size, dim) * 0.1",
    ),
    bug(
        # AUC 0.749; 0.808 when healthy
        "vocabulary-of-a-hundred-rows",
        "recsys_podcasts_dot",
        "The vocabularies are of the first hundred rows, a rest of trying it out: most listeners are unknown.",
        "df.head(100) left over from the notebook",
        "df = train.collect()",
        "df = train.head(100).collect()",
    ),
    bug(
        # shows an AUC of 0.998, is 0.733 on offers as they are; 0.808 when healthy
        "negatives-keep-their-attributes",
        "recsys_podcasts_dot",
        "A negative has the name of another show beside category, publisher and length of the one that was played.",
        "negative sampling that shuffles the id alone",
        rows=negatives_keep_attributes,
    ),
    bug(
        # shows a log loss of 0.86, is 3.1 on pauses before the click; 1.25 when healthy
        "pause-until-the-next-click",
        "recsys_visits_next_step",
        "A pause is the time to the next click, so the last one is of the future, and 0 before a visitor leaves.",
        "diff(-1) for diff()",
        rows=pause_until_the_next,
    ),
    bug(
        # log loss 1.32, accuracy 0.48; 1.25 and 0.52 when healthy
        "the-first-twelve",
        "recsys_visits_next_step",
        "Long visits keep their first twelve clicks, not the last.",
        "pad_sequences with truncating='post'",
        'seq[-MAXLEN:]] for seq in rows["steps"]',
        'seq[:MAXLEN]] for seq in rows["steps"]',
        'seq[-MAXLEN:]] for seq in rows["pages"]',
        'seq[:MAXLEN]] for seq in rows["pages"]',
        'seq[-MAXLEN:]] for seq in rows["pauses"]',
        'seq[:MAXLEN]] for seq in rows["pauses"]',
    ),
    bug(
        # log loss 1.52; 1.25 when healthy
        "first-step-is-padding",
        "recsys_visits_next_step",
        "Codes of steps begin with 0, which is the padding: a click on the cart does not exist.",
        "enumerate without start=1 beside padding_idx=0",
        "for i, s in enumerate(self.steps, start=1)",
        "for i, s in enumerate(self.steps)",
    ),
]
