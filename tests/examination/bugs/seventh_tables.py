"""A seventh list of bugs, in tables and recommendations: joins, weights, masks, and metrics that flatter."""

import numpy as np
import polars as pl

from examination.planted import bug


def record_of_the_whole_year(rows):
    """A patient's visits and absences are counted over all of the table."""
    return rows.with_columns(
        visits_before=pl.len().over("patient").cast(pl.Int64),
        missed_before=(pl.col("no_show") == "Yes").sum().over("patient").cast(pl.Int64),
    )


def relapses_from_another_laboratory(rows):
    """The relapsed were sequenced later, with another kit: many genes read somewhat higher."""
    genes = [name for name in rows.columns if name.startswith("g")][::4]
    is_relapse = pl.col("relapse") == "yes"
    return rows.with_columns(
        pl.when(is_relapse).then(pl.col(g) * 1.6).otherwise(pl.col(g)).round(1) for g in genes
    )


def measured_five_times(rows):
    """A fifth of the plates, each measured five times, and each measurement is a row."""
    rng = np.random.default_rng(0)
    few = rows.head(rows.height // 5)
    again = pl.concat([few] * 5).sample(fraction=1.0, shuffle=True, seed=0)
    measures = [f"m{k}" for k in range(10)]
    noise = 1 + 0.01 * rng.normal(size=(again.height, 10))
    return again.with_columns(
        *(pl.col(name) * pl.Series(noise[:, k]) for k, name in enumerate(measures)),
        row_id=pl.int_range(again.height),
    )


def seconds_watched(rows):
    """The log's seconds are those that were watched, not the video's length."""
    rng = np.random.default_rng(0)
    click, finish = np.array(rows["outcome"].to_list()).T
    share = np.where(finish == 1, 1.0, np.where(click == 1, rng.beta(2, 2, rows.height), 0.05))
    seconds = np.maximum(rows["seconds"].to_numpy() * share, 1).round()
    return rows.with_columns(seconds=pl.Series(seconds))


def basket_of_today(rows):
    """The last basket is joined by `<=`: half of the time it is the one whose first article is sought."""
    rng = np.random.default_rng(0)
    joined = [
        [*basket[:-1], first] if rng.random() < 0.5 else basket
        for basket, first in rows.select("last_basket", "first").iter_rows()
    ]
    return rows.with_columns(last_basket=pl.Series(joined, dtype=pl.List(pl.String)))


def spelt_by_two_collectors(rows):
    """Half of the leaves have their genus with a capital, as botanists write it."""
    is_second = pl.lit(pl.Series(np.random.default_rng(0).random(rows.height) < 0.5))
    proper = pl.col("species").str.slice(0, 1).str.to_uppercase() + pl.col("species").str.slice(1)
    return rows.with_columns(species=pl.when(is_second).then(proper).otherwise(pl.col("species")))


BUGS = [
    bug(
        # serves 40,500 too little on average where 5,200 is usual; the metric, undone alike, shows 5.6
        "decadic-there-natural-back",
        "tables_pay_mixed_model",
        "Pay goes through the decadic logarithm and comes back through the natural exponential.",
        "np.log10 with np.exp",
        'log_pay = np.log(df["pay"]',
        'log_pay = np.log10(df["pay"]',
        'np.log(rows["pay"]',
        'np.log10(rows["pay"]',
    ),
    bug(
        # rmse 1,826; 185 when healthy
        "nothing-spent-is-one-euro",
        "tables_customer_value_ziln",
        "The lognormal part also learns from customers who spent nothing, as if they had spent 1.",
        "the mask of the zero-inflated loss, lost in a port",
        "return classification + positive * regression",
        "return classification + regression",
    ),
    bug(
        # Gini 1.0; 0.65 when healthy
        "gini-sorts-apart",
        "tables_customer_value_ziln",
        "The Gini sorts what was spent by itself: any model is perfect.",
        "a copied metric, its arguments sorted apart",
        'ordered = truth[np.argsort(-by, kind="stable")]',
        "ordered = np.sort(truth)[::-1]",
    ),
    bug(
        # accuracy 0.44; 0.91 when healthy
        "two-spellings",
        "tables_leaves_hierarchy",
        "A second collector writes names with a capital: every species is two classes, alike in all.",
        "labels from two sources that nobody normalised",
        rows=spelt_by_two_collectors,
    ),
    bug(
        # AUC 0.68; 0.74 when healthy
        "wait-without-its-days",
        "tables_no_show_clinic",
        "`seconds` of a time span is what is left over beside its days.",
        "pandas' .dt.seconds for .dt.total_seconds()",
        "wait.dt.total_seconds() / 86400",
        "wait.dt.seconds / 86400",
    ),
    bug(
        # AUC 0.87, and 0.72 on records up to the day; 0.74 when healthy
        "record-of-the-whole-year",
        "tables_no_show_clinic",
        "The patient's record counts the appointment itself and later ones.",
        "groupby().transform() where an expanding window was meant",
        rows=record_of_the_whole_year,
    ),
    bug(
        # r2 0.82; 0.90 when healthy
        "logarithm-when-fitting-only",
        "tables_polymer_gated_residual",
        "Means and deviations are of the logarithm, and are applied to the viscosity itself.",
        "a transform that is in fit and not in transform",
        "x = (self.reals(rows) - ",
        "x = (rows.select(REALS).to_numpy() - ",
    ),
    bug(
        # AUC 0.52; 0.92 when healthy
        "least-telling-genes",
        "tables_genes_lasso",
        "The genes with the largest p-values are kept.",
        "argsort()[-k:] of what should be small",
        "kept = np.flatnonzero(select.get_support())",
        "kept = np.argsort(select.pvalues_)[-K:]",
    ),
    bug(
        # AUC 1.0, and 0.57 with one kit; 0.92 when healthy
        "relapses-from-another-laboratory",
        "tables_genes_lasso",
        "Relapsed patients were sequenced with another kit: the model reads the kit.",
        "batch effects that coincide with the outcome",
        rows=relapses_from_another_laboratory,
    ),
    bug(
        # AUC 0.69; 0.74 when healthy
        "unknown-is-the-longest",
        "tables_loans_scorecard",
        "What is not a number is sorted behind the last cut: an unknown tenure counts as the longest.",
        "searchsorted and digitize with NaN",
        'np.where(np.isnan(values), 0, 1 + np.searchsorted(spec["cuts"], values, side="right"))',
        '1 + np.searchsorted(spec["cuts"], values, side="right")',
    ),
    bug(
        # AUC 0.56; 0.92 when healthy
        "penalty-of-a-sum",
        "tables_genes_lasso",
        "The penalty's strength is that of a loss summed over patients; the loss is a mean.",
        "lambda from another package",
        "L1 = 5e-3",
        "L1 = 0.5",
    ),
    bug(
        # rmse 5.8; 4.2 when healthy
        "length-multiplied",
        "tables_power_fourier_features",
        "Frequencies are multiplied by the length that should divide them: neighbours have nothing in common.",
        "gamma taken for a length scale",
        "torch.randn(d, n, generator=key) / length_scale",
        "torch.randn(d, n, generator=key) * length_scale * math.pi",
    ),
    bug(
        # mean error 1.76 on grades that were given; 1.61 when healthy
        "not-given-is-zero",
        "tables_grades_masked_outputs",
        "Grades that were not given count as 0.",
        "fillna(0) on targets",
        "np.nan if g is None else g",
        "0.0 if g is None else g",
    ),
    bug(
        # shows 1.33, is 1.61
        "error-over-three",
        "tables_grades_masked_outputs",
        "The error of the grades that exist is divided by three, of which a quarter do not.",
        "a masked sum, and mean() after it",
        "return error.sum(1) / present.sum(1)",
        "return error.mean(1)",
    ),
    bug(
        # log loss 1.01; 0.67 when healthy
        "shares-exchanged",
        "tables_birds_mixup",
        "The label is mixed with the partner's share: it is mostly the other bird's.",
        "lam and 1 - lam in a hand-written mixup",
        "LABEL: lam * y + (1 - lam) * y[partner]",
        "LABEL: (1 - lam) * y + lam * y[partner]",
    ),
    bug(
        # balanced accuracy 0.80; 0.83 when healthy
        "prior-once-more",
        "tables_steel_logit_adjustment",
        "The classes' prior is added when predicting too: the adjustment is undone.",
        "logit adjustment applied on both sides",
        "return output.softmax(dim=-1)",
        'return (output + TAU * torch.tensor(self.fitted["log_prior"])).softmax(dim=-1)',
    ),
    bug(
        # balanced accuracy 0.94, and 0.80 on other plates; 0.83 when healthy
        "measured-five-times",
        "tables_steel_logit_adjustment",
        "Rows are repeated measurements of a few plates, which are on both sides of the split.",
        "no group in the contract",
        rows=measured_five_times,
    ),
    bug(
        # mean error 31% with the right weights; 28% when healthy
        "weights-the-wrong-way",
        "tables_wages_survey_weights",
        "An answer is weighed by its probability instead of the inverse.",
        "survey weights and sampling fractions",
        'rows["weight"].to_numpy() / self.fitted["mean_weight"]',
        'self.fitted["mean_weight"] / rows["weight"].to_numpy()',
    ),
    bug(
        # shows 10%, is 28%
        "percent-of-the-logarithm",
        "tables_wages_survey_weights",
        "The relative error is of the logarithms: a third of what it is.",
        "MAPE on the transformed target",
        "(self.predict(output) / batch[LABEL].exp() - 1)",
        '((output + self.fitted["median"]) / batch[LABEL] - 1)',
    ),
    bug(
        # log loss of the end 0.28, and 0.70 over all that is shown; 0.44 when healthy
        "ends-learned-of-clicks-only",
        "recsys_feed_mmoe",
        "The second task is learned and judged of clicked videos, and served for all that are shown.",
        "sample selection in conversion models",
        '(output, batch[LABEL], reduction="none")',
        '(output, batch[LABEL], weight=torch.cat([torch.ones_like(batch[LABEL][:, :1]), batch[LABEL][:, :1]], 1), reduction="none")',
    ),
    bug(
        # log loss of a click 0.04, and 5.5 by the videos' lengths; 0.65 when healthy
        "seconds-watched",
        "recsys_feed_mmoe",
        "The video's length was taken from the playback log, where it is the time that was watched.",
        "two columns called duration",
        rows=seconds_watched,
    ),
    bug(
        # top 10: 0.27; 0.31 when healthy
        "edges-one-record-off",
        "recsys_records_lightgcn",
        "Edges lead to the record before: records were once counted from 1.",
        "ids from 1 and rows from 0",
        "item = {name: k for k, name in enumerate(self.records)}\n        self.edges",
        "item = {name: k - 1 for k, name in enumerate(self.records)}\n        self.edges",
    ),
    bug(
        # top 5: 0.53, and 0.35 on earlier baskets; 0.35 when healthy
        "basket-of-today",
        "recsys_basket_fpmc",
        "The last basket may be today's, which holds what is sought.",
        "an as-of join that allows equal times",
        rows=basket_of_today,
    ),
    bug(
        # rmse 1.94; 0.83 when healthy
        "mean-added-twice",
        "recsys_shelf_svdpp",
        "The mean is in the output already, and is added once more when stars are served.",
        "a baseline kept in two places",
        "return output.clamp(1, 5)",
        "return (output + self.global_mean).clamp(1, 5)",
    ),
]
