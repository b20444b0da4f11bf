"""Values as text: numbers people can compare, and characters no browser misreads."""

import html
import math
import re
from collections.abc import Iterator, Sequence
from numbers import Integral, Real

MISSING = "\N{EN DASH}"
# Control characters, lone surrogates and bidirectional overrides: invisible, not encodable, or
# able to reorder what is read. Tab and line feed stay.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_NUMERIC = re.compile(
    r"[+\-±\N{MINUS SIGN}]?(\d[\d,]*)?\.?\d+([eE][+\-]?\d+)?\s?(%|[a-zA-Zµ/]{1,5})?"
)


def printable(text: str) -> str:
    r"""Return the text with what cannot be shown spelled out, as `\x00`; line ends become `\n`."""
    unified = text.replace("\r\n", "\n")
    return _UNPRINTABLE.sub(lambda match: ascii(match.group())[1:-1], unified)


def escaped(value: object) -> str:
    """Return any value as HTML or SVG text that is safe in content and in quoted attributes."""
    return html.escape(printable(shown(value)))


def shown(value: object) -> str:
    """Return a value as people write it: `1,234`, four significant digits, yes and no."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{int(value):,}"
    if isinstance(value, Real):
        return number(float(value))
    return str(value)


def number(value: float, digits: int = 4) -> str:
    """Return a number with this many significant digits and no trailing zeros."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if not -4 <= magnitude < 7:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{_trimmed(mantissa)}e{int(exponent)}"
    return _trimmed(f"{value:,.{max(0, digits - 1 - magnitude)}f}")


def counted(number: int, noun: str) -> str:
    """Return a number of things, such as `1 partition` or `2,000 rows`."""
    plural = "es" if noun.endswith(("s", "ch", "x")) else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table as lines of text, its columns aligned."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def duration(seconds: float) -> str:
    """Return a time span in its two largest units, such as `4 min 12 s`."""
    if not math.isfinite(seconds) or seconds < 0:
        return MISSING
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def shortened(text: str, limit: int) -> str:
    """Return the text, cut with an ellipsis in its middle: column names differ at both ends."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"


def is_numeric(value: object) -> bool:
    """Whether a table should align this value to the right."""
    if isinstance(value, bool):
        return False
    return isinstance(value, Real) or bool(_NUMERIC.fullmatch(str(value).strip()))


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
