"""A seventeenth list of bugs: slips with moths, concerts, matches, baskets and wells."""

from datetime import date

import numpy as np
import polars as pl

from examination.planted import bug


def wind_blows_to(rows):
    """The second half of the season is from another station, which reports where wind blows to."""
    late = pl.col("released") >= date(2023, 8, 15)
    turned = (pl.col("wind_from") + 180) % 360
    return rows.with_columns(wind_from=pl.when(late).then(turned).otherwise(pl.col("wind_from")))


def posts_of_the_export(rows):
    """Posts are those of the export's day: a night that sold out was talked about afterwards."""
    rng = np.random.default_rng(1)
    full = (rows["sold"] >= rows["seats"]).to_numpy()
    share = (rows["sold"] / rows["seats"]).to_numpy()
    after = rng.poisson(2 + 25 * share + 15 * full)
    return rows.with_columns(posts=pl.col("posts") + pl.Series(after))


def winner_comes_first(rows):
    """The older seasons' archive names the winner first, wherever the match was."""
    names = ["home", "away", "home_grip", "away_grip", "home_rest", "away_rest"]
    other = [names[k ^ 1] for k in range(6)]
    turn = (pl.col("result") == "away") & (pl.col("played") < date(2022, 3, 1))
    swapped = [
        pl.when(turn).then(pl.col(b)).otherwise(pl.col(a)).alias(a)
        for a, b in zip(names, other, strict=True)
    ]
    result = pl.when(turn).then(pl.lit("home")).otherwise(pl.col("result"))
    return rows.with_columns(*swapped, result=result)


def baskets_in_order_of_number(rows):
    """The export gathers a customer's items without an order: they come by their numbers."""
    return rows.with_columns(pl.col("bought_before").list.sort())


def parts_of_the_alphabet(rows):
    """A second institute's file has the same five columns, in the order of the alphabet."""
    turn = np.array([2, 3, 0, 4, 1])  # care, leisure, sleep, travel, work
    second = rows["region"].is_in(["R0", "R3", "R6"]).to_list()
    minutes = [
        [m[k] for k in turn] if s else m
        for m, s in zip(rows["minutes"].to_list(), second, strict=True)
    ]
    return rows.with_columns(minutes=pl.Series(minutes))


def elements_sorted_alone(rows):
    """Some papers' elements were sorted by name when they were typed in; their amounts were not."""
    some = pl.col("paper").str.slice(3).cast(pl.Int64) % 2 == 0
    by_name = pl.col("elements").list.sort()
    return rows.with_columns(elements=pl.when(some).then(by_name).otherwise(pl.col("elements")))


def pasted_two_rows_off(rows):
    """The camera's measures were pasted beside the grades, below a line that was none."""
    names = ["length_mm", "width_mm", "lightness", "yellow", "cracks", "density"]
    return rows.with_columns(pl.col(names).shift(2).over("lot").fill_null(strategy="backward"))


def smoothed_around_each_day(rows):
    """The authority's curve is a mean over seven days around each, those to come included."""
    smoothed = []
    for past, ahead in zip(rows["past"].to_list(), rows["reported"].to_list(), strict=True):
        days = np.array([*past, *ahead], dtype=float)
        smoothed.append([float(np.nanmean(days[max(i - 3, 0) : i + 4])) for i in range(len(past))])
    return rows.with_columns(past=pl.Series(smoothed))


def fractions_of_an_app(rows):
    """Three observers' app exports cover as a fraction, in the column of percents."""
    app = pl.col("observer").is_in(["obs2", "obs5", "obs7"])
    cover = pl.col("cover_pct")
    return rows.with_columns(cover_pct=pl.when(app).then((cover / 100).round(3)).otherwise(cover))


BUGS = [
    bug(
        # NLL 1.39, 44 degrees off; 0.85 and 26 when healthy
        "degrees-into-sine",
        "odd_moths_vonmises",
        "The bearing of the wind goes into sine and cosine in degrees.",
        "np.sin of degrees",
        "radians = np.deg2rad(degrees)\n    return",
        "radians = degrees\n    return",
    ),
    bug(
        # shows 1.43, is an NLL of 1.28 on one convention; 0.85 when healthy
        "wind-blows-to",
        "odd_moths_vonmises",
        "A second station reports the direction that wind blows to, in the column of its origin.",
        "conventions of two stations",
        rows=wind_blows_to,
    ),
    bug(
        # MAE 98.4; 53.1 when healthy
        "ceiling-in-seats",
        "tables_concerts_tobit",
        "Sold out is asked of a logarithm and a number of seats: no night ever is.",
        "a threshold in the unit before the transform",
        "sold_out = y >= d.ceiling - 1e-6",
        "sold_out = y >= d.ceiling.exp() - 1e-6",
    ),
    bug(
        # shows an MAE of 30.0, is 264 on posts as known before; 53.1 when healthy
        "posts-of-the-export",
        "tables_concerts_tobit",
        "Posts are counted up to the export, the talk about the night itself included.",
        "a counter without a date",
        rows=posts_of_the_export,
    ),
    bug(
        # log loss 0.930, accuracy 0.561; 0.867 and 0.638 when healthy
        "strength-of-home-twice",
        "odd_matches_davidson",
        "The strengths of both players are added where one must be taken from the other.",
        "sum over the pair",
        "s = level[:, 0] - level[:, 1] +",
        "s = level.sum(dim=1) +",
    ),
    bug(
        # shows 0.776, is 0.912 on matches as they were listed; 0.867 when healthy
        "winner-comes-first",
        "odd_matches_davidson",
        "Of the older half of the matches the winner is named first, as if all were won at home.",
        "winner and loser columns renamed to home and away",
        rows=winner_comes_first,
    ),
    bug(
        # log loss 4.73, top 10 in 19 %; 4.42 and 33 % when healthy
        "columns-normalised",
        "recsys_baskets_elsa",
        "The columns of the factors have length one, not the rows: the diagonal is far from zero.",
        "F.normalize along the wrong dimension",
        "A = F.normalize(self.A, dim=1)",
        "A = F.normalize(self.A, dim=0)",
    ),
    bug(
        # shows 4.64 and 24 %, is 4.48 in order of purchase; 4.42 and 33 % when healthy
        "baskets-in-order-of-number",
        "recsys_baskets_elsa",
        "Items of the history come in the order of their numbers, not of their purchase.",
        "array_agg without ORDER BY",
        rows=baskets_in_order_of_number,
    ),
    bug(
        # RMSE 0.182; 0.116 when healthy
        "gaps-are-readings",
        "forecast_wells_kalman",
        "Weeks without a reading update the state, as if the well stood at its mean.",
        "nan_to_num without the mask",
        "[:, None] * seen[:, t, None]",
        "[:, None]",
    ),
    bug(
        # RMSE 0.486, 0.551 with rain in order; 0.116 when healthy
        "rain-newest-first",
        "forecast_wells_kalman",
        "The service lists the weeks of rain from the newest to the oldest.",
        "an export ordered by date descending",
        rows=lambda rows: rows.with_columns(pl.col("rain_mm").list.reverse()),
    ),
    bug(
        # shows an NLL of 4.09, is 3.55 and 132 minutes off on one order; 1.69 and 58 when healthy
        "parts-of-the-alphabet",
        "tables_diaries_ilr",
        "Three regions' diaries list the parts in the order of the alphabet.",
        "columns matched by position",
        rows=parts_of_the_alphabet,
    ),
    bug(
        # shows an NLL of -0.40, is 172 minutes off; 58 when healthy
        "shares-without-logarithm",
        "tables_diaries_ilr",
        "The loss projects the shares themselves, not their logarithms, on the basis.",
        "ilr of raw shares",
        "z = batch[LABEL].log() @",
        "z = (batch[LABEL] / 1440) @",
    ),
    bug(
        # MAE 91.9; 38.3 when healthy
        "balance-is-nothing",
        "odd_alloys_roost",
        "The element that makes up the balance counts as absent: its amount is zero.",
        "missing amounts filled by 0",
        "[100 - stated if a is None else a for a in amounts]",
        "[0.0 if a is None else a for a in amounts]",
    ),
    bug(
        # shows an MAE of 91.9, is 61.0 on lists that belong together; 38.3 when healthy
        "elements-sorted-alone",
        "odd_alloys_roost",
        "In half of the papers the elements are sorted, and the amounts are not.",
        "one of two parallel lists sorted",
        rows=elements_sorted_alone,
    ),
    bug(
        # log loss 1.133, accuracy 0.475; 0.952 and 0.593 when healthy
        "answers-summed-away",
        "odd_kernels_crowd_layer",
        "The sum is over what graders may say, not over hidden grades: all graders are alike.",
        "a reduction over the wrong dimension of a square matrix",
        "log_confusion, dim=1)",
        "log_confusion, dim=2)",
    ),
    bug(
        # shows a log loss of 1.221, is 1.183 on kernels' own measures; 0.952 when healthy
        "pasted-two-rows-off",
        "odd_kernels_crowd_layer",
        "Measures are pasted two rows below the grades they belong to.",
        "columns joined by position",
        rows=pasted_two_rows_off,
    ),
    bug(
        # NLL 4.36, MAE 37.8; 4.18 and 30.9 when healthy
        "weekday-stands-still",
        "forecast_infections_renewal",
        "All days, of the window and ahead, have the weekday of the first day ahead.",
        "an offset lost by broadcasting",
        "(weekday[:, None] + torch.arange(-WINDOW, AHEAD)) % 7",
        "(weekday[:, None] + torch.zeros(WINDOW + AHEAD, dtype=torch.long)) % 7",
    ),
    bug(
        # shows an MAE of 25.7, is 39.7 on days as they were reported; 30.9 when healthy
        "smoothed-around-each-day",
        "forecast_infections_renewal",
        "The window is a centred mean over seven days: its end knows the days to forecast.",
        "rolling(7, center=True)",
        rows=smoothed_around_each_day,
    ),
    bug(
        # MAE 24.9; 12.0 when healthy
        "full-of-the-percent",
        "tables_meadows_zoib",
        "Cover is never divided: whatever is one percent and more counts as a plot that is full.",
        "percent where a share is meant",
        "y = batch[LABEL] / 100\n",
        "y = batch[LABEL]\n",
    ),
    bug(
        # shows an MAE of 10.7, is 15.4 on percents; 12.0 when healthy
        "fractions-of-an-app",
        "tables_meadows_zoib",
        "Three observers' covers are fractions among percents.",
        "units of an app's export",
        rows=fractions_of_an_app,
    ),
]
