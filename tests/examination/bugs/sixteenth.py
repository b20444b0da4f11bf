"""A sixteenth list of bugs: slips with street lamps, ferries and orchards."""

import numpy as np
import polars as pl

from examination.planted import bug


def still_burning(rows):
    """The second number of the export is whether the lamp still burns."""
    return rows.with_columns(outcome=pl.Series([[m, 1 - f] for m, f in rows["outcome"].to_list()]))


def faults_until_today(rows):
    """Faults of the lamp's street are counted until today: its own failure is among them."""
    months, failed = np.array(rows["outcome"].to_list()).T
    later = np.random.default_rng(0).poisson(failed * 60 / (months + 6))
    own = (3 * failed + later).astype(int)
    return rows.with_columns(street_faults=pl.col("street_faults") + pl.Series(own))


def window_ends_today(rows):
    """The rolling window is closed on both sides: its last day is the day to forecast."""
    moved = [
        [*p[1:], y]
        for p, y in zip(rows["past"].to_list(), rows["passengers"].to_list(), strict=True)
    ]
    return rows.with_columns(past=pl.Series(moved))


def some_in_acres(rows):
    """Growers who came by a takeover report tonnes per acre, below the heading of hectares."""
    late = pl.col("grower").is_in([f"G{g:02}" for g in range(0, 20, 2)])
    area = pl.when(late).then(pl.col("tonnes_per_ha") / 2.471).otherwise(pl.col("tonnes_per_ha"))
    return rows.with_columns(tonnes_per_ha=area)


BUGS = [
    bug(
        # shows 2.60, is 2.47 with true flags; 2.10 when healthy, 2.43 untrained
        "still-burning",
        "odd_lamps_weibull",
        "The flag of failure is the flag of lamps that still burn.",
        "event=1 and censored=1 mixed up",
        rows=still_burning,
    ),
    bug(
        # shows 1.81, is an NLL of 12.9; 2.10 when healthy
        "no-survival-of-the-failed",
        "odd_lamps_weibull",
        "Lamps that failed have the hazard only, without having survived until then.",
        "torch.where(event, log_hazard, log_survival)",
        "cumulative - failed * log_hazard",
        "(1 - failed) * cumulative - failed * log_hazard",
    ),
    bug(
        # shows an NLL of 1.91, is 2.72 on faults as known before; 2.10 when healthy
        "faults-until-today",
        "odd_lamps_weibull",
        "Faults of the street are counted until today, the lamp's own failure included.",
        "a count joined without a date",
        rows=faults_until_today,
    ),
    bug(
        # MAE 80.4; 70.1 when healthy
        "reshaped-not-transposed",
        "forecast_ferries_gru",
        "Channels and days are reshaped, not transposed: a step has two days' values, or two flags.",
        "reshape instead of transpose",
        "transpose(0, 2, 1)",
        "reshape(-1, WINDOW, 2)",
    ),
    bug(
        # shows an MAE of 8.3, is 161 on windows that end the day before; 70.1 when healthy
        "window-ends-today",
        "forecast_ferries_gru",
        "The window ends with the day that is to be forecast.",
        "rolling without shift(1)",
        rows=window_ends_today,
    ),
    bug(
        # MAE 81.4; 70.1 when healthy
        "one-step-too-early",
        "forecast_ferries_gru",
        "The state of the first day is read, not of the last.",
        "states[:, 0] as with a [CLS] token",
        "states[:, -1]",
        "states[:, 0]",
    ),
    bug(
        # shows an NLL of 2.20 and an MAE of 1.90, is 4.63 and 4.99 on tonnes per hectare; 2.67 and 2.67 when healthy
        "some-in-acres",
        "tables_orchards_student",
        "Half of the growers report tonnes per acre.",
        "units of a second source",
        rows=some_in_acres,
    ),
    bug(
        # NLL 3.22, MAE 4.76; 2.67 and 2.67 when healthy
        "one-scale-for-all",
        "tables_orchards_student",
        "Centre and scale are those of all numbers together, not of each column.",
        "mean and std without an axis",
        "np.nanmedian(numbers, axis=0).tolist()",
        "float(np.nanmedian(numbers))",
        "np.nanstd(numbers, axis=0).tolist()",
        "float(np.nanstd(numbers))",
    ),
    bug(
        # NLL 2.85, MAE 3.38; 2.67 and 2.67 when healthy
        "dropout-on-the-output",
        "tables_orchards_student",
        "Dropout stands behind the last layer, over centre and spread themselves.",
        "dropout on the output of a regression",
        "self.out = nn.Linear(dim, 2)",
        "self.out = nn.Sequential(nn.Linear(dim, 2), nn.Dropout(0.3))",
    ),
]
