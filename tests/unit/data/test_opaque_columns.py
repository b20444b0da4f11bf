"""What pictures, lists and texts look like in numbers, and what a change of them moves."""

import numpy as np
import polars as pl
import pytest

from perennial.contracts.data import DataSection
from perennial.data.opaque_columns import (
    STATISTICS,
    derive,
    is_blank,
    is_unreadable,
    opaque_columns,
    picture_statistics,
)
from perennial.data.pictures import encode_png


def measured(pixels: np.ndarray) -> dict[str, float]:
    return dict(zip(STATISTICS["picture"], picture_statistics(pixels), strict=True))


def data(**roles) -> DataSection:
    return DataSection(uri="data", label="label", ids=("id",), **roles)


def derived(column: pl.Series, kind: str) -> pl.DataFrame:
    return derive(column.to_frame(), {column.name: kind})


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        (pl.Binary, "picture"),
        (pl.Array(pl.UInt8, (8, 8)), "picture"),
        (pl.Array(pl.Float32, (8, 8, 3)), "picture"),
        (pl.Array(pl.Float32, 64), "numbers"),
        (pl.List(pl.Int64), "numbers"),
        (pl.List(pl.List(pl.Float64)), "numbers"),
        (pl.List(pl.String), None),
        (pl.String, None),
        (pl.Float64, None),
        (pl.Datetime("us"), None),
    ],
)
def test_the_type_tells_what_a_column_holds(dtype, kind):
    found = opaque_columns(data(), pl.Schema({"x": dtype}), ["x"])
    assert found == ({} if kind is None else {"x": kind})


def test_the_contract_tells_free_text_from_categories():
    schema = pl.Schema({"city": pl.String, "review": pl.String})
    assert opaque_columns(data(text=("review",)), schema, schema) == {"review": "text"}


CHANGES = {
    "brighter": (lambda p: np.clip(p + 40, 0, 255), "brightness"),
    "flatter": (lambda p: p.mean() + (p - p.mean()) * 0.5, "contrast"),
    "moved": (lambda p: np.roll(p, 2, axis=1), "center_x"),
    "moved down": (lambda p: np.roll(p, 2, axis=0), "center_y"),
    "smoothed across": (lambda p: (p + np.roll(p, 1, axis=1)) / 2, "edges_across"),
    "smoothed down": (lambda p: (p + np.roll(p, 1, axis=0)) / 2, "edges_down"),
    "cut": (lambda p: p[:, :-2], "width"),
    "cut below": (lambda p: p[:-2], "height"),
    "mirrored": (lambda p: p[:, ::-1], "slant"),
}


@pytest.mark.parametrize(("change", "moves"), CHANGES.values(), ids=CHANGES)
def test_each_change_moves_its_statistic(change, moves):
    diagonal = np.zeros((12, 12))
    for row in range(2, 8):
        diagonal[row, row - 1 : row + 2] = 180
    before = measured(diagonal.astype(np.uint8))
    after = measured(np.asarray(change(diagonal)).astype(np.uint8))
    assert abs(after[moves] - before[moves]) > 0.1 * max(abs(before[moves]), 0.1)


def test_colour_is_seen():
    grey, red = np.full((4, 4, 3), 90, np.uint8), np.zeros((4, 4, 3), np.uint8)
    red[..., 0] = 255
    assert measured(grey)["color"] == 0.0
    assert measured(red)["color"] == 1.0


def test_size_alone_hardly_moves_the_others():
    small = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    large = small.repeat(40, axis=0).repeat(40, axis=1)
    before, after = measured(small), measured(large)
    for name in ("brightness", "contrast", "center_x", "center_y"):
        assert after[name] == pytest.approx(before[name], abs=0.02), name


def test_unreadable_pictures_are_distinguished_from_missing_ones():
    column = pl.Series("p", [encode_png(np.eye(8, dtype=np.uint8)), b"broken", None,
                             encode_png(np.full((8, 8), 7, np.uint8))])  # fmt: skip
    rows = column.to_frame().hstack(derived(column, "picture"))
    assert rows.select(is_unreadable("p", "picture")).to_series().to_list() == [0, 1, 0, 0]
    assert rows.select(is_blank("p", "picture")).to_series().to_list() == [0, 0, 0, 1]
    assert rows["p.brightness"].is_null().to_list() == [False, True, True, False]


INFINITE = float("inf")
LISTS = [
    [1.0, 3.0],
    [2.0, 2.0],
    [1.0, float("nan")],
    [1.0, None],
    [None],
    [],
    [1.0, INFINITE],
    None,
]


@pytest.mark.parametrize("nested", [False, True])
def test_lists_are_measured_without_their_gaps_and_unreadable_if_infinite(nested):
    values = [[each] if nested and each is not None else each for each in LISTS]
    dtype = pl.List(pl.List(pl.Float64)) if nested else pl.List(pl.Float64)
    column = pl.Series("v", values, dtype=dtype)
    rows = column.to_frame().hstack(derived(column, "numbers"))
    assert rows["v.mean"].to_list() == [2.0, 2.0, 1.0, 1.0, None, None, None, None]
    assert rows["v.spread"].to_list() == [1.0, 0.0, 0.0, 0.0, None, None, None, None]
    assert rows["v.missing"].to_list() == [0.0, 0.0, 0.5, 0.5, 1.0, None, None, None]
    unreadable = rows.select(is_unreadable("v", "numbers")).to_series()
    assert unreadable.to_list() == [0, 0, 0, 0, 0, 0, 1, 0]
    assert rows.select(is_blank("v", "numbers")).to_series().to_list() == [0, 1, 1, 1, 0, 0, 0, 0]


def test_texts_are_counted_in_characters():
    column = pl.Series("t", ["Grüße, 12 mal!", " \n", "", None])
    table = derived(column, "text")
    assert table["t.length"].to_list() == [14.0, 2.0, 0.0, None]
    assert table["t.words"].to_list() == [3.0, 0.0, 0.0, None]
    first = table.row(0, named=True)
    shares = {"letters": 8, "capitals": 1, "digits": 2, "spaces": 2, "symbols": 2, "non_ascii": 2}
    assert {name: first[f"t.{name}"] * 14 for name in shares} == pytest.approx(shares)
    rows = column.to_frame().hstack(table)
    assert rows.select(is_blank("t", "text")).to_series().to_list() == [0, 1, 1, 0]


def test_statistics_do_not_depend_on_the_other_rows():
    random = np.random.default_rng(1)
    column = pl.Series("p", [encode_png(random.integers(0, 256, (6, 5), dtype=np.uint8))
                             for _ in range(20)])  # fmt: skip
    whole = derived(column, "picture")
    parts = pl.concat([derived(column.slice(start, 7), "picture") for start in (0, 7, 14)])
    assert whole.equals(parts)
