"""A suite of expectations on flights, and 30 ways in which a month of flights gets corrupt."""

from datetime import datetime, timedelta

import polars as pl

from perennial.validate_data.suites.document import Suite, SuiteExpectation

CARRIERS = [
    "9E",
    "AA",
    "AS",
    "B6",
    "DL",
    "EV",
    "F9",
    "FL",
    "HA",
    "MQ",
    "OO",
    "UA",
    "US",
    "VX",
    "WN",
    "YV",
]
WEEKDAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
HOURS = list(range(5, 24))
SHARES = {"EWR": 0.36, "JFK": 0.33, "LGA": 0.31}

FROM_NEWARK = {
    "column": {"name": "origin"}, "operator": "==", "parameter": "EWR", "type": "comparison",
}  # fmt: skip


def expect(name, column=None, **kwargs):
    """One expectation, by its name without `expect_`."""
    severity = kwargs.pop("severity", "critical")
    return SuiteExpectation(
        type=f"expect_{name}",
        kwargs=({"column": column} if column else {}) | kwargs,
        severity=severity,
    )


ON_FACTS = (
    expect("table_row_count_to_be_between", min_value=20_000, max_value=40_000),
    expect("table_column_count_to_equal", value=26),
    expect("table_columns_to_match_set", column_set=["carrier", "origin"], exact_match=False),
    expect("column_to_exist", "visib"),
    expect("column_values_to_not_be_null", "flight_id"),
    expect("column_values_to_not_be_null", "temp", mostly=0.95),
    expect("column_values_to_not_be_null", "seats", mostly=0.8),
    expect("column_values_to_be_null", "wind_gust", mostly=0.5),
    expect("column_proportion_of_non_null_values_to_be_between", "engines", min_value=0.75),
    expect("column_values_to_be_between", "distance", min_value=0, max_value=6_000),
    expect("column_values_to_be_between", "temp", min_value=-20, max_value=110, mostly=0.99),
    expect("column_values_to_be_between", "humid", min_value=0, max_value=100, strict_min=True),
    expect("column_values_to_be_between", "sched_hour", min_value=5, max_value=24, strict_max=True),
    expect("column_values_to_be_between", "sched_minute_of_day", max_value=1_440, strict_max=True),
    expect("column_values_to_be_between", "wind_speed", max_value=70),
    expect("column_values_to_be_in_set", "carrier", value_set=CARRIERS),
    expect("column_values_to_be_in_set", "origin", value_set=["EWR", "JFK", "LGA"], mostly=0.99),
    expect("column_values_to_be_in_set", "arrived_late", value_set=[0, 1]),
    expect("column_values_to_be_in_set", "engines", value_set=[1, 2, 3, 4]),
    expect("column_values_to_not_be_in_set", "dest", value_set=["EWR", "XXX"]),
    expect("column_values_to_not_be_in_set", "visib", value_set=[-1, 999.0]),
    expect("column_values_to_match_regex", "flight_id", regex=r"^\d{8}-\w\w\d+-[A-Z]{3}$"),
    expect("column_values_to_match_regex", "tailnum", regex="^N", mostly=0.99),
    expect("column_values_to_match_regex", "dest", regex=r"^(?!ZZ)[A-Z]"),
    expect("column_values_to_not_match_regex", "manufacturer", regex="(?i)unknown|^$"),
    expect("column_values_to_match_regex_list", "tailnum", regex_list=["^N", "^D"], match_on="any"),
    expect("column_values_to_not_match_regex_list", "dest", regex_list=["[a-z]", r"\s"]),
    expect("column_value_lengths_to_equal", "origin", value=3),
    expect("column_value_lengths_to_be_between", "tailnum", min_value=5, max_value=6),
    expect("column_values_to_be_unique", "flight_id"),
    expect("column_values_to_be_unique", "sched_minute_of_day", mostly=0.003),
    expect("compound_columns_to_be_unique", column_list=["scheduled_departure", "flight_id"]),
    expect("column_unique_value_count_to_be_between", "dest", min_value=80, max_value=120),
    expect("column_proportion_of_unique_values_to_be_between", "tailnum", max_value=0.2),
    expect("column_distinct_values_to_be_in_set", "weekday", value_set=WEEKDAYS),
    expect("column_distinct_values_to_contain_set", "carrier", value_set=["UA", "DL", "B6"]),
    expect("column_distinct_values_to_equal_set", "origin", value_set=["EWR", "JFK", "LGA"]),
    expect("column_distinct_values_to_be_in_set", "sched_hour", value_set=HOURS),
    expect("column_most_common_value_to_be_in_set", "carrier", value_set=["UA", "EV", "B6"]),
    expect("column_min_to_be_between", "seats", min_value=1, max_value=10),
    expect("column_max_to_be_between", "distance", min_value=2_000, max_value=6_000),
    expect("column_max_to_be_between", "scheduled_departure", max_value="2013-02-01T00:00:00"),
    expect("column_min_to_be_between", "sched_hour", min_value=0, strict_min=True),
    expect("column_mean_to_be_between", "temp", min_value=20, max_value=60),
    expect("column_mean_to_be_between", "arrived_late", min_value=0.1, max_value=0.4),
    expect("column_median_to_be_between", "distance", min_value=500, max_value=1_500),
    expect("column_stdev_to_be_between", "wind_speed", min_value=2, max_value=10),
    expect("column_sum_to_be_between", "precip", min_value=0, max_value=5_000),
    expect("column_type_to_be", "distance", type_="int64"),
    expect("column_values_to_be_of_type", "temp", type_="float64"),
    expect("column_values_to_be_in_type_list", "seats", type_list=["float64", "int64"]),
    expect("column_pair_values_to_be_equal", column_A="dest", column_B="origin", mostly=0.0),
    expect(
        "column_pair_values_a_to_be_greater_than_b",
        column_A="scheduled_departure", column_B="weather_observed_at", or_equal=True,
        ignore_row_if="either_value_is_missing",
    ),
    expect(
        "column_pair_values_a_to_be_greater_than_b",
        column_A="temp", column_B="dewp", or_equal=True, mostly=0.97,
    ),
    expect(
        "column_kl_divergence_to_be_less_than", "origin", threshold=0.05, tail_weight_holdout=0.01,
        partition_object={"values": list(SHARES), "weights": list(SHARES.values())},
    ),
    expect(
        "column_kl_divergence_to_be_less_than", "temp", threshold=0.3, tail_weight_holdout=0.01,
        internal_weight_holdout=0.01,
        partition_object={
            "bins": [10.0, 25.0, 32.0, 39.0, 46.0, 60.0], "weights": [0.2, 0.2, 0.25, 0.25, 0.1],
        },
    ),
)  # fmt: skip

ON_ROWS = (
    expect("column_values_to_be_between", "distance", min_value=10, row_condition=FROM_NEWARK),
    expect("column_value_z_scores_to_be_less_than", "temp", threshold=6, double_sided=True),
    expect("column_values_to_be_dateutil_parseable", "weekday"),
    expect("column_quantile_values_to_be_between", "distance", quantile_ranges={
        "quantiles": [0.1, 0.5, 0.9], "value_ranges": [[100, 300], [600, 1_200], [1_500, 2_600]],
    }),
    expect("column_pair_values_to_be_in_set", column_A="origin", column_B="weekday",
           value_pairs_set=[["EWR", day] for day in WEEKDAYS], mostly=0.3),
)  # fmt: skip

SUITE = Suite(name="flights", expectations=(*ON_FACTS, *ON_ROWS))

_FIRST = pl.int_range(pl.len()) < pl.len() // 10
_START = datetime(2013, 1, 1)


def _where(column, value):
    return lambda flights: flights.with_columns(
        pl.when(_FIRST).then(value).otherwise(pl.col(column)).alias(column)
    )


def _with(**columns):
    return lambda flights: flights.with_columns(**columns)


CORRUPTIONS = {
    "healthy": lambda flights: flights,
    "a tenth of temperatures missing": _where("temp", None),
    "all temperatures missing": _with(temp=pl.lit(None, pl.Float64)),
    "temperatures not a number": _where("temp", float("nan")),
    "an infinite temperature": _with(
        temp=pl.when(pl.int_range(pl.len()) == 7).then(float("inf")).otherwise("temp")
    ),
    "temperatures in Celsius": _with(temp=(pl.col("temp") - 32) / 1.8),
    "distances in kilometres": _with(distance=(pl.col("distance") * 1.609).round().cast(pl.Int64)),
    "distances as decimals": _with(distance=pl.col("distance").cast(pl.Float64)),
    "distances as texts": _with(distance=pl.col("distance").cast(pl.String)),
    "negative distances": _where("distance", -pl.col("distance")),
    "missing distances": _where("distance", None),
    "a new carrier": _where("carrier", pl.lit("ZZ")),
    "carriers in small letters": _with(carrier=pl.col("carrier").str.to_lowercase()),
    "a carrier is gone": lambda flights: flights.filter(pl.col("carrier") != "UA"),
    "an airport is gone": lambda flights: flights.filter(pl.col("origin") != "LGA"),
    "origin and destination swapped": _with(origin="dest", dest="origin"),
    "temperature and dew point swapped": _with(temp="dewp", dewp="temp"),
    "ids repeated": _where("flight_id", pl.lit("20130101-UA1545-EWR")),
    "ids missing": _where("flight_id", None),
    "ids with blanks": _where("flight_id", pl.concat_str("flight_id", pl.lit(" "))),
    "ids of another form": _where("flight_id", pl.lit("flight ") + pl.col("tailnum")),
    "rows doubled": lambda flights: pl.concat([flights, flights.head(2_000)]),
    "truncated to 500 rows": lambda flights: flights.head(500),
    "no rows": lambda flights: flights.head(0),
    "labels shuffled": _with(arrived_late=pl.col("arrived_late").shuffle(1)),
    "labels inverted": _with(arrived_late=1 - pl.col("arrived_late")),
    "labels as booleans": _with(arrived_late=pl.col("arrived_late") == 1),
    "a column is missing": lambda flights: flights.drop("visib"),
    "a column is renamed": lambda flights: flights.rename({"humid": "Humid"}),
    "clock a month ahead": _with(scheduled_departure=pl.col("scheduled_departure") + timedelta(31)),
    "weather of the next hour": _with(
        weather_observed_at=pl.col("weather_observed_at") + timedelta(hours=1)
    ),
    "hours of two zones": _where("sched_hour", (pl.col("sched_hour") + 7) % 24),
    "destinations as numbers": _with(dest=pl.col("dest").rank("dense").cast(pl.Int64)),
    "empty manufacturers": _where("manufacturer", pl.lit("")),
    "seats as texts": _with(seats=pl.col("seats").cast(pl.String)),
    "wind in knots": _with(wind_speed=pl.col("wind_speed") * 12),
}
