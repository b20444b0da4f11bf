"""Numbers as people write them: decimal commas, thousands separators, currencies, percent.

A CSV reader takes such columns for texts, and the column that tells most would be left out.
"""

from collections.abc import Collection

import polars as pl

BEGIN, END = r"^\s*[€$£¥]?\s*[+-]?", r"\s*(?:[€$£¥%]|EUR|USD|GBP|CHF)?\s*$"
UNIT, SYMBOLS = "([€$£¥%]|EUR|USD|GBP|CHF)", {"€": "EUR", "$": "USD", "£": "GBP"}
# What a number looks like, and what separates its thousands.
FORMS = {
    "a decimal point": (rf"{BEGIN}(?:\d{{1,3}}(?:[, ']\d{{3}})+|\d+)(?:\.\d+)?{END}", r"[, ']"),
    "a decimal comma": (rf"{BEGIN}(?:\d{{1,3}}(?:[. ]\d{{3}})+|\d+)(?:,\d+)?{END}", r"[. ]"),
}
# What a number would not keep: zeros in front, and digits beyond those of a fraction.
LEADING_ZERO, LONG = r"^\s*[+-]?0\d+\s*$", r"^\s*[+-]?\d{16,}\s*$"
# How people write that a number is missing.
MISSING = r"(?i)^\s*(?:|\?|-+|\.|n\.?/?a\.?|#n/a|none|null|nan|missing|unknown)\s*$"
# Of fewer values, such as 0, 1, 2, 3+, the texts are categories as they are.
FEWEST_VALUES = 20
# With a smaller share of numbers, a column holds texts of which some happen to be numbers.
MOSTLY_NUMBERS = 0.9


def parse_written_numbers(
    table: pl.LazyFrame, leave: Collection[str] = ()
) -> tuple[pl.LazyFrame, list[str]]:
    """Turn the columns of texts that are all numbers into numbers.

    Digits alone become whole numbers, unless they would lose some: 007 is a code. A column whose
    numbers have two readings, such as 1,234, stays as it is, and so do those that `leave` names.
    Returns notes for people, too: what was done, and what stands in the way.
    """
    schema = table.collect_schema()
    texts = [name for name, dtype in schema.items() if dtype == pl.String and name not in leave]
    if not texts:
        return table, []
    found = table.select(_count_readings(name) for name in texts).collect().row(0, named=True)
    numbers, notes = [], []
    for name, counted in found.items():
        form = max(FORMS, key=counted.get)
        if not counted[form] or counted[form] < MOSTLY_NUMBERS * counted["texts"]:
            continue
        is_whole = counted["whole"] == counted["texts"]
        if counted["zeros"] or (counted["long"] and not is_whole):
            continue
        if others := counted["texts"] - counted[form]:
            if counted["values"] < FEWEST_VALUES:
                continue
            notes.append(
                f"texts: {name!r}, {others:,} of {counted['texts']:,} values are not numbers, such "
                f"as {counted[f'no {form}']!r}: leave those cells empty, and it is a number"
            )
        elif counted["kinds"] > 1:
            notes.append(
                f"texts: {name!r} has numbers in {counted['units']}: write them in one unit"
            )
        elif counted["ambiguous"]:
            notes.append(
                f"texts: {name!r} has numbers that can be read in two ways, such as 1,234: write "
                "them without separators of thousands"
            )
        else:
            numbers.append(_whole(name) if is_whole else _reading(name, *FORMS[form]))
            how = "as text" if is_whole else f"with {form} or a unit"
            gaps = f"; {counted['missing']:,} written as missing" if counted["missing"] else ""
            notes.append(f"numbers: {name!r}, written {how}{gaps}")
    return table.with_columns(numbers), notes


def _count_readings(name: str) -> pl.Expr:
    """Count a column's texts, units and numbers, these by form with an exception of each."""
    is_missing = pl.col(name).str.contains(MISSING)
    column = pl.when(~is_missing).then(pl.col(name))
    readings = {form: _reading(name, *parts) for form, parts in FORMS.items()}
    with_point, with_comma = readings.values()
    is_ambiguous = (with_point != with_comma).any()
    # Only where both forms fit every value: else the one that fits decides.
    for reading in readings.values():
        is_ambiguous &= reading.count() == column.count()
    exceptions = {
        f"no {form}": column.filter(reading.is_null()).drop_nulls().first()
        for form, reading in readings.items()
    }
    counts = {form: reading.count() for form, reading in readings.items()}
    units = column.str.extract(UNIT).replace(SYMBOLS)
    # Beside 5% the same share may be 0.05; a price without its currency is a price.
    has_bare = (units == "%").any() & column.is_not_null()
    units = pl.when(has_bare).then(units.fill_null("no unit")).otherwise(units).drop_nulls()
    parts = {"texts": column.count(), "ambiguous": is_ambiguous, **counts, **exceptions}
    parts |= {"whole": _whole(name).count(), "zeros": column.str.contains(LEADING_ZERO).any()}
    parts |= {"missing": is_missing.sum(), "values": column.n_unique()}
    parts |= {"long": column.str.contains(LONG).any()}
    parts |= {"units": units.unique().sort().str.join(" and "), "kinds": units.n_unique()}
    return pl.struct(value.alias(key) for key, value in parts.items()).alias(name)


def _reading(name: str, pattern: str, thousands: str) -> pl.Expr:
    """Return the column's numbers; null where a value is not one."""
    digits = pl.col(name).str.replace_all(thousands, "").str.replace(",", ".")
    number = digits.str.extract(r"([+-]?\d+(?:\.\d+)?)").cast(pl.Float64)
    return pl.when(pl.col(name).str.contains(pattern)).then(number).alias(name)


def _whole(name: str) -> pl.Expr:
    """Return the column's whole numbers of digits alone; null where a value is not one."""
    return pl.col(name).str.strip_chars().cast(pl.Int64, strict=False).alias(name)
