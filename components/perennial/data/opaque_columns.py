"""Opaque columns: numeric statistics of pictures, lists of numbers and free text.

A picture or a text has no quantiles. What is derived from it here has: each statistic becomes a
column of its own, `image.brightness` for instance, and is validated and watched for drift like any
other number. The statistics need no model, so they mean the same for years.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from perennial.contracts.data import DataSection
from perennial.contracts.errors import BadDataError
from perennial.data.pictures import decode_picture

OpaqueKind = Literal["picture", "numbers", "text"]

STATISTICS: Mapping[OpaqueKind, tuple[str, ...]] = {
    "picture": (
        *("width", "height", "brightness", "contrast", "color"),
        *("edges_across", "edges_down", "slant", "center_x", "center_y"),
    ),
    "numbers": ("length", "mean", "spread", "low", "high", "missing"),
    "text": (
        *("length", "words", "letters", "capitals", "digits", "spaces", "symbols", "non_ascii"),
    ),
}
_FORM = ("width", "height", "length", "words", "missing")
_CHARACTERS = {
    "letters": r"\p{L}",
    "capitals": r"\p{Lu}",
    "digits": r"\p{Nd}",
    "spaces": r"\s",
    "symbols": r"[^\p{L}\p{Nd}\s]",
    "non_ascii": r"[^\x00-\x7F]",
}
# Null in every value that cannot be read.
_READ: Mapping[OpaqueKind, str] = {"picture": "contrast", "numbers": "length", "text": "words"}
# Zero in every value that carries no information.
_VARIES: Mapping[OpaqueKind, str] = {"picture": "contrast", "numbers": "spread", "text": "words"}
# Statistics of large pictures are taken of every k-th pixel: they are means, not details.
_MEASURED_PIXELS = 64
_DECODING_THREADS = 4  # Pillow decodes outside of Python's lock


def opaque_columns(
    data: DataSection, schema: Mapping[str, pl.DataType], names: Iterable[str]
) -> dict[str, OpaqueKind]:
    """Return the kind of each opaque column; binary ones hold encoded pictures."""
    kinds = {name: _kind(name, schema[name], data) for name in names}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def statistic(column: str, name: str) -> str:
    """The name of a derived column."""
    return f"{column}.{name}"


def is_content(derived: str) -> bool:
    """Whether a derived column describes the content that models learn from, not its form."""
    return derived.rpartition(".")[2] not in _FORM


def derived_columns(opaque: Mapping[str, OpaqueKind]) -> list[str]:
    """The names of all derived columns."""
    return [statistic(name, each) for name, kind in opaque.items() for each in STATISTICS[kind]]


def derive(rows: pl.DataFrame, opaque: Mapping[str, OpaqueKind]) -> pl.DataFrame:
    """The derived columns, Float64; null where the value is missing or cannot be read."""
    tables = [_DERIVE[kind](rows[name]) for name, kind in opaque.items()]
    table = pl.concat(tables, how="horizontal") if tables else pl.DataFrame()
    return table.with_columns(pl.all().cast(pl.Float64).fill_nan(None))


def is_unreadable(column: str, kind: OpaqueKind) -> pl.Expr:
    """Whether a value that is there could not be read; the derived columns must be in the table."""
    return pl.col(column).is_not_null() & pl.col(statistic(column, _READ[kind])).is_null()


def is_blank(column: str, kind: OpaqueKind) -> pl.Expr:
    """Whether a value is one colour, one number several times, or text without a word."""
    is_flat = pl.col(statistic(column, _VARIES[kind])) == 0
    if kind == "numbers":
        is_flat &= pl.col(statistic(column, "length")) > 1
    return is_flat.fill_null(False)


def picture_statistics(pixels: NDArray[np.generic]) -> tuple[float, ...]:
    """The statistics of one picture, [H, W] or [H, W, C], in the order of `STATISTICS`.

    Values of eight bits are put on [0, 1]; others stay in their own unit. Edges are root mean
    square steps between neighbours, which blurring lowers where mean steps would stay. `slant`
    tells which way oblique edges lean (-1 to 1), and the centre is that of the deviations from the
    mean, as a share of width and height.
    """
    height, width = pixels.shape[:2]
    step = max(max(height, width) // _MEASURED_PIXELS, 1)
    values = pixels[::step, ::step].astype(np.float64)
    if pixels.dtype == np.uint8:
        values /= 255.0
    color = float(np.ptp(values, axis=2).mean()) if values.ndim == 3 else 0.0
    grey = values.mean(axis=2) if values.ndim == 3 else values
    contrast = float(grey.std()) if grey.min() < grey.max() else 0.0
    across, down = np.diff(grey, axis=1), np.diff(grey, axis=0)
    inner = across[:-1], down[:, :-1]
    energy = float((inner[0] ** 2 + inner[1] ** 2).sum())
    slant = 2.0 * float((inner[0] * inner[1]).sum()) / energy if energy else 0.0
    away = np.abs(grey - grey.mean())
    mass = float(away.sum())
    middle = [
        float((away.sum(axis=1 - axis) * (np.arange(size) + 0.5)).sum() / size / mass)
        if contrast
        else 0.5
        for axis, size in enumerate(grey.shape)
    ]
    edges = [float(np.sqrt((each**2).mean())) if each.size else 0.0 for each in (across, down)]
    return (
        *(float(width), float(height), float(grey.mean()), contrast, color),
        *(edges[0], edges[1], slant, middle[1], middle[0]),
    )


def _kind(name: str, dtype: pl.DataType, data: DataSection) -> OpaqueKind | None:
    if name in data.text:
        return "text"
    if dtype == pl.Binary:
        return "picture"
    inner = dtype
    while isinstance(inner, pl.List | pl.Array):
        inner = _inner(inner)
    if inner is dtype or not inner.is_numeric():
        return None
    return "picture" if isinstance(dtype, pl.Array) and len(dtype.shape) > 1 else "numbers"


def _inner(dtype: pl.List | pl.Array) -> pl.DataType:
    return dtype.inner() if isinstance(dtype.inner, type) else dtype.inner


def _picture_table(column: pl.Series) -> pl.DataFrame:
    with ThreadPoolExecutor(_DECODING_THREADS) as pool:
        measured = list(pool.map(_measured, column))
    names = [statistic(column.name, each) for each in STATISTICS["picture"]]
    return pl.DataFrame(measured, schema=dict.fromkeys(names, pl.Float64), orient="row")


def _measured(value: bytes | pl.Series | None) -> tuple[float | None, ...]:
    missing = (None,) * len(STATISTICS["picture"])
    if value is None:
        return missing
    try:
        pixels = decode_picture(value) if isinstance(value, bytes) else value.to_numpy()
    except BadDataError:  # counted by the caller, who sees a value without statistics
        return missing
    is_known = pixels.size > 0 and np.isfinite(pixels.astype(np.float64)).all()
    return picture_statistics(pixels) if is_known else missing


def _number_table(column: pl.Series) -> pl.DataFrame:
    """The statistics of each list's numbers that are there, and the share of those that are not.

    A gap in a series is a null or NaN. A list with an infinite number cannot be read.
    """
    lists = column.arr.to_list() if isinstance(column.dtype, pl.Array) else column
    while isinstance(lists.dtype, pl.List) and isinstance(lists.dtype.inner, pl.List | pl.Array):
        lists = lists.list.eval(pl.element().explode())
    value = pl.col("value").list
    known, length = value.eval(pl.element().fill_nan(None)).list.drop_nulls().list, value.len()
    is_infinite = value.eval(pl.element().is_infinite()).list.any()
    found = {
        "length": length,
        "mean": known.mean(),
        "spread": known.std(ddof=0),
        "low": known.min(),
        "high": known.max(),
        "missing": 1.0 - known.len() / length,
    }
    values = lists.cast(pl.List(pl.Float64)).alias("value").to_frame()
    return values.select(
        pl.when(~is_infinite).then(found[name]).alias(statistic(column.name, name))
        for name in STATISTICS["numbers"]
    )


def _text_table(column: pl.Series) -> pl.DataFrame:
    text, length = pl.col("value").str, pl.col("value").str.len_chars()
    found = {"length": length, "words": text.count_matches(r"\S+")}
    found |= {
        name: pl.when(length > 0).then(text.count_matches(pattern) / length)
        for name, pattern in _CHARACTERS.items()
    }
    return (
        column.alias("value")
        .to_frame()
        .select(found[name].alias(statistic(column.name, name)) for name in STATISTICS["text"])
    )


_DERIVE: Mapping[OpaqueKind, Callable[[pl.Series], pl.DataFrame]] = {
    "picture": _picture_table,
    "numbers": _number_table,
    "text": _text_table,
}
