"""Heat maps and gauges: what is drawn, and that any values can be."""

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perennial.reports.charts import gauge_chart
from perennial.reports.heat_map import heat_map
from perennial.reports.page import checked_svg

SHADE = re.compile(r'fill-opacity="([\d.]+)" shape-rendering="crispEdges" d="([^"]+)"')


def shades(cells):
    """Opacity → the drawn text, without the legend's nine boxes."""
    drawn = SHADE.findall(heat_map(cells, x_label="input", y_label="output"))
    return {float(opacity): path for opacity, path in drawn[:-9]}


@settings(max_examples=40)
@given(st.integers(0, 60), st.integers(0, 60), st.floats())
def test_any_map_can_be_drawn(rows, columns, value):
    drawn = checked_svg(heat_map([[value] * columns] * rows, x_label="x" * 90, y_label="y" * 90))
    assert not re.search(r'="[^"<]*\b(nan|inf)\b', drawn)


def test_a_faint_dependence_has_a_shade_and_noise_has_none():
    assert shades([[1e-6, 0.0], [math.nan, -1.0]]) == {}
    assert set(shades([[0.01, 1.0], [0.5, 7.0]])) == {0.125, 0.5, 1.0}


def test_cells_of_a_shade_that_touch_in_a_row_are_one_rectangle():
    assert shades([[1.0, 1.0, 0.0, 1.0]])[1.0].count("M") == 2


def test_a_large_map_keeps_its_single_strong_cell_and_reports_it():
    cells = [[0.0] * 200 for _ in range(200)]
    cells[150][10] = 1.0
    assert list(shades(cells)) == [1.0]
    assert "largest of 5 by 5 values" in heat_map(cells, x_label="x", y_label="y")


def test_rows_of_a_map_are_of_one_length():
    with pytest.raises(ValueError, match=r"\[1, 2\]"):
        heat_map([[1.0], [1.0, 2.0]], x_label="x", y_label="y")


@settings(max_examples=60)
@given(
    st.dictionaries(st.text(max_size=40), st.floats(), max_size=5),
    st.none() | st.tuples(st.floats(), st.floats()),
)
def test_any_gauge_can_be_drawn(values, band):
    drawn = checked_svg(gauge_chart(values, x_label="loss", band=band))
    assert not re.search(r'="[^"<]*\b(nan|inf)\b', re.sub(r'aria-label="[^"]*"', "", drawn))
