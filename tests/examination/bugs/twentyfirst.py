"""A twenty-first list of bugs: plain slips in tables, recommendations and forecasts."""

import numpy as np
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


BUGS = [
    bug(
        "areas-in-two-units",
        "tables_heating_energy",
        "A third of the houses have their area in square feet, the others in square metres.",
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
        "Encoding standardises by the rows at hand, as fit_transform in place of transform does.",
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
        "The lookup asks the list of the wrong column, and all yards become the unknown one.",
        "a loop's variable that was left over",
        'for name, known in zip(STRINGS, self.fitted["vocabulary"])',
        'for name, known in zip(STRINGS, self.fitted["vocabulary"][::-1])',
    ),
    bug(
        "softmax-over-probabilities",
        "tables_hives_spring",
        "Probabilities go into the cross-entropy that takes logits.",
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
        "Categories are numbered by what occurs in the rows that are encoded.",
        "astype('category').cat.codes on training and test separately",
        'enumerate(["#na#", *self.fitted["classes"][c]])',
        'enumerate(["#na#", *sorted(rows[c].cast(str).drop_nulls().unique())])',
    ),
    bug(
        "dropout-when-served",
        "tables_bicycle_repairs",
        "Dropout of the functional kind stays on in evaluation and serving.",
        "F.dropout without training=self.training",
        "x = self.emb_drop(x)",
        "x = nn.functional.dropout(x, 0.5)",
    ),
]
