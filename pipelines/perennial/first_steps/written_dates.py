"""Dates as people write them: 1/31/2025 4:05 PM, 31-Jan-25, January 31, 2025, 2025-01, March 2025.

A CSV reader knows few forms. The others stay texts: the days become categories, or the column that
orders the rows is left out.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

import polars as pl

from perennial.first_steps.written_numbers import parse_written_numbers

# Hour, minute, second, and AM or PM, behind a date.
CLOCK = r"(?:(?:T|,?\s+)(\d{1,2}):(\d{2})(?::(\d{2}))?(?:\.\d+)?\s*([AaPp]\.?[Mm]\.?)?)?\s*$"
MONTH = r"([A-Za-z]{3})[a-z]*\.?"
# What each group is. Of two numbers in front of the year, the values decide which is the month.
FORMS = {
    r"^\s*(\d{4})[/.-](\d{1,2})[/.-](\d{1,2})": "year month day",
    r"^\s*(\d{1,2})[/.-](\d{1,2})[/.-](\d{4}|\d{2})": "day month year",
    rf"^\s*(\d{{1,2}})[\s/.-]{MONTH}[\s/.,-]+(\d{{4}}|\d{{2}})": "day name year",
    rf"^\s*{MONTH}[\s/.-](\d{{1,2}})(?:st|nd|rd|th)?[\s/.,-]+(\d{{4}}|\d{{2}})": "name day year",
    r"^\s*(\d{4})[/-](\d{1,2})": "year month",
    rf"^\s*{MONTH}[\s/-](\d{{4}})": "name year",
}
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
NANOSECONDS_OF_AN_HOUR = 3.6e12
STORED = "%Y-%m-%d %H:%M:%S"
# With a smaller share of dates, a column holds texts of which some happen to be dates.
MOSTLY_DATES = 0.9


def parse_written_values(
    table: pl.LazyFrame, leave: Collection[str] = ()
) -> tuple[pl.LazyFrame, list[str]]:
    """Turn columns of texts into the numbers and the times that they are; return notes, too."""
    table, notes = parse_written_numbers(table, leave)
    table, more = parse_written_dates(table, leave)
    table, stripped = _strip_variants(table)
    return table, [*notes, *more, *stripped]


def _strip_variants(table: pl.LazyFrame) -> tuple[pl.LazyFrame, list[str]]:
    """Remove the spaces around texts of columns in which some differ by nothing else.

    Where all have them they stay, as rows that are predicted later will have them, too.
    """
    texts = [name for name, dtype in table.collect_schema().items() if dtype == pl.String]
    if not texts:
        return table, []
    column = pl.col(texts)
    kinds = column.n_unique() - column.str.strip_chars().n_unique()
    found = table.select(kinds).collect().row(0, named=True)
    same = [name for name, number in found.items() if number]
    notes = [f"texts: {name!r}, spaces around values removed: some differ by them" for name in same]
    return table.with_columns(pl.col(same).str.strip_chars()), notes


def parse_written_dates(
    table: pl.LazyFrame, leave: Collection[str] = ()
) -> tuple[pl.LazyFrame, list[str]]:
    """Turn the columns of texts that are all dates into times, and times of day into numbers.

    Columns that can be read in two ways, such as 1/2/2025 throughout, stay as they are, and so do
    those that `leave` names. Returns notes for people, too: what was done, and what stands in the
    way.
    """
    schema = table.collect_schema()
    clocks = [name for name, dtype in schema.items() if dtype == pl.Time and name not in leave]
    table = table.with_columns(pl.col(clocks).cast(pl.Int64) / NANOSECONDS_OF_AN_HOUR)
    notes = [f"numbers: {name!r}, a time of day, in hours" for name in clocks]
    texts = [name for name, dtype in schema.items() if dtype == pl.String and name not in leave]
    if not texts:
        return table, notes
    counts = {
        name: pl.struct(
            pl.col(name).count().alias("texts"),
            *(pl.col(name).str.contains(form + CLOCK).sum().alias(form) for form in FORMS),
        ).alias(name)
        for name in texts
    }
    found = table.select(counts.values()).collect().row(0, named=True)
    dates = []
    for name, counted in found.items():
        form = max(FORMS, key=counted.get)
        if not counted[form] or counted[form] < MOSTLY_DATES * counted["texts"]:
            continue
        times, note = _read(table.select(name).collect().to_series(), form)
        notes.append(note)
        if times is not None:
            dates.append(times)
    return table.with_columns(dates), notes


def _read(texts: pl.Series, form: str) -> tuple[pl.Expr | None, str]:
    """Return the times of a column's texts, or None where they are not sure, and a note."""
    parts, name = FORMS[form].split(), repr(texts.name)
    # Of 1/2/2025 and 1/31/2025 the second decides. Nobody writes the month first before a point.
    has_points = texts.str.contains(r"^\s*\d+\.").all()
    is_open = parts == ["day", "month", "year"] and not has_points
    orders = [parts, ["month", "day", "year"]] if is_open else [parts]
    times = [_times(texts.name, form, order) for order in orders]
    readings = [texts.to_frame().select(each).to_series() for each in times]
    fewest = min(range(len(readings)), key=lambda at: readings[at].null_count())
    best = readings[fewest]
    wrong = texts.filter(best.is_null() & texts.is_not_null())
    if len(wrong):
        return None, (
            f"texts: {name}, {len(wrong):,} of {texts.count():,} values are not dates as the "
            f"others are, such as {wrong[0]!r}: write all as 2025-01-31, unknown ones empty"
        )
    shown = repr(texts.drop_nulls()[0])
    if any(each.null_count() == best.null_count() and (each != best).any() for each in readings):
        return None, (
            f"texts: {name} has dates that can be read in two ways, such as {shown}: write them as "
            "2025-01-31"
        )
    # Such as 62, of a year of opening or of birth.
    has_short_years = not texts.drop_nulls().str.contains(r"\d{4}").all()
    if has_short_years and best.max() > datetime.now():  # type: ignore[operator]
        return None, (
            f"texts: {name} has years of two digits, some of which may be of the last century: "
            "write them with four"
        )
    has_clock, chosen = texts.str.contains(":").any(), times[fewest]
    return chosen if has_clock else chosen.dt.date(), f"dates: {name}, written as {shown}"


def _times(name: str, form: str, order: Sequence[str]) -> pl.Expr:
    """Return the times that texts of a form stand for; null where one is not a time."""
    column = pl.col(name)
    found = {part: column.str.extract(form + CLOCK, at) for at, part in enumerate(order, 1)}
    if "name" in found:
        names = dict(zip(MONTHS, range(1, len(MONTHS) + 1), strict=True))
        found["month"] = found["name"].str.to_lowercase().replace_strict(names, default=None)
    year = found["year"].cast(pl.Int32)
    year += pl.when(year >= 100).then(0).when(year < 69).then(2000).otherwise(1900)
    clock = range(len(order) + 1, len(order) + 5)
    hour, minute, second, half = (column.str.extract(form + CLOCK, at) for at in clock)
    hours = hour.cast(pl.Int32)
    is_pm = half.str.to_lowercase().str.starts_with("p").cast(pl.Int32)
    hours = pl.when(half.is_null()).then(hours).otherwise(hours % 12 + 12 * is_pm)
    parts = [part.fill_null(0) for part in (hours, minute.cast(pl.Int32), second.cast(pl.Int32))]
    day = found.get("day", pl.lit(1))  # a month begins with its first day
    written = pl.format("{}-{}-{} {}:{}:{}", year, found["month"], day, *parts)
    return written.str.to_datetime(STORED, strict=False).alias(name)
