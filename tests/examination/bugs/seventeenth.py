"""A seventeenth list of bugs: slips with moths, concerts, matches, baskets and wells."""

from datetime import date

import polars as pl

from examination.planted import bug


def wind_blows_to(rows):
    """The second half of the season is from another station, which reports where wind blows to."""
    late = pl.col("released") >= date(2023, 8, 15)
    turned = (pl.col("wind_from") + 180) % 360
    return rows.with_columns(wind_from=pl.when(late).then(turned).otherwise(pl.col("wind_from")))


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
        # shows 1.43, is an NLL of 1.28 and 38 degrees off by one convention; 0.85 and 26 when healthy
        "wind-blows-to",
        "odd_moths_vonmises",
        "A second station reports the direction that wind blows to, in the column of its origin.",
        "conventions of two stations",
        rows=wind_blows_to,
    ),
]
