"""Dates as people write them: 3/31/2025, 31.3.2025, 2025-03, March 2025, with or without a time.

A CSV reader takes such columns for texts, and rows that belong to a time would be split by chance.
"""

from collections.abc import Collection

import polars as pl

# By name of a form: what is set in front of a value, and the pattern of both. A month begins with
# its first day.
DAYS = {
    "month/day/year": ("", "%m/%d/%Y"),
    "day/month/year": ("", "%d/%m/%Y"),
    "day.month.year": ("", "%d.%m.%Y"),
    "month-day-year": ("", "%m-%d-%Y"),
    "day-month-year": ("", "%d-%m-%Y"),
    "year/month/day": ("", "%Y/%m/%d"),
    "day-Month-year": ("", "%d-%B-%Y"),
    "Month day, year": ("", "%B %d, %Y"),
    "year-month": ("1 ", "%d %Y-%m"),
    "Month-year": ("1 ", "%d %B-%Y"),
    "Month year": ("1 ", "%d %B %Y"),
}
TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
SAMPLE = 1000  # values by which most forms are excluded
YEAR = r"\d{4}"


def parse_written_dates(
    table: pl.LazyFrame, leave: Collection[str] = ()
) -> tuple[pl.LazyFrame, list[str]]:
    """Turn the columns of texts that are all dates of one form into times.

    A column whose dates have two readings, such as 1/2/2025, stays as it is, and so do those that
    `leave` names. Returns notes for people, too.
    """
    schema = table.collect_schema()
    texts = [name for name, dtype in schema.items() if dtype == pl.String and name not in leave]
    sample = table.select(texts).head(SAMPLE).collect()
    found = {name: forms for name in texts if (forms := _forms_of(sample[name]))}
    times, notes = [], list[str]()
    for values in table.select(list(found)).collect():
        name = values.name
        forms = [form for form in found[name] if _count(values, *form) == values.count()]
        if len(forms) > 1:
            both = " and as ".join(day for day, _ in forms)
            notes.append(
                f"texts: {name!r} has dates that can be read as {both}: write them as 2025-01-31"
            )
        elif forms:
            times.append(_reading(name, *forms[0]))
            notes.append(f"times: {name!r}, written {forms[0][0]}")
    return table.with_columns(times), notes


def _forms_of(values: pl.Series) -> list[tuple[str, str]]:
    """Return the forms, of day and time, in which every value can be read."""
    if not values.count() or not values.str.contains(YEAR).all():
        return []
    every = ((day, time) for day in DAYS for time in TIMES)
    return [form for form in every if _count(values, *form) == values.count()]


def _count(values: pl.Series, day: str, time: str) -> int:
    """Return how many values can be read in a form."""
    return int(values.to_frame().select(_reading(values.name, day, time).count()).item())


def _reading(name: str, day: str, time: str) -> pl.Expr:
    """Return a column's times; null where a value has another form."""
    begin, pattern = DAYS[day]
    text = pl.lit(begin) + pl.col(name).str.strip_chars()
    read = text.str.to_datetime(pattern + time, strict=False, time_unit="us")
    # A hyphen before a year is read as a sign, too.
    return pl.when(read.dt.year() > 0).then(read).alias(name)
