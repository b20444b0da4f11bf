import math
import random
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perennial.reports.charts import bar_chart, interval_chart, line_chart
from perennial.reports.page import checked_svg

FLOATS = st.floats()
NAMES = st.text(max_size=60)


def line(points, **options):
    return line_chart({"loss": points}, x_label="update", y_label="loss", **options)


def canvas(svg):
    _, _, width, height = ElementTree.fromstring(svg).attrib["viewBox"].split()
    return float(width), float(height)


def paths(svg, classes):
    root = ElementTree.fromstring(svg)
    return [
        path.attrib["d"] for path in root.iter("path") if path.attrib["class"].startswith(classes)
    ]


def corners(path):
    """The points of a path of absolute M and L commands."""
    return [tuple(map(float, pair.split())) for pair in re.findall(r"-?[\d.]+ -?[\d.]+", path)]


def texts(svg):
    return [element.text for element in ElementTree.fromstring(svg).iter("text")]


def assert_sound(svg):
    checked_svg(svg)
    assert not re.search(r'="[^"<]*\b(nan|inf)\b', re.sub(r'aria-label="[^"]*"', "", svg))
    width, height = canvas(svg)
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        for name in ("x", "cx"):
            assert -1 <= float(element.attrib.get(name, 0)) <= width + 1
        for name in ("y", "cy"):
            assert -1 <= float(element.attrib.get(name, 0)) <= height + 1
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"]
    assert root[0].tag == "title"


POINTS = st.lists(st.tuples(FLOATS, FLOATS), max_size=8)


@settings(max_examples=60)
@given(
    st.dictionaries(NAMES, POINTS, max_size=9),
    st.dictionaries(NAMES, FLOATS, max_size=5),
    st.booleans(),
)
def test_any_lines_can_be_drawn(series, marks, dates):
    assert_sound(line_chart(series, x_label="x", y_label="y", marks=marks, x_dates=dates))


@settings(max_examples=60)
@given(st.dictionaries(NAMES, FLOATS, max_size=9), st.none() | FLOATS)
def test_any_bars_can_be_drawn(values, threshold):
    assert_sound(bar_chart(values, x_label="x", threshold=threshold))


@settings(max_examples=60)
@given(st.dictionaries(NAMES, st.tuples(FLOATS, FLOATS, FLOATS), max_size=9), st.none() | FLOATS)
def test_any_intervals_can_be_drawn(intervals, reference):
    assert_sound(interval_chart(intervals, x_label="x", reference=reference))


@pytest.mark.parametrize(
    "svg",
    [
        line_chart({}, x_label="x", y_label="y"),
        line([]),
        line([(0, math.nan), (1, math.inf)]),
        bar_chart({}, x_label="x"),
        interval_chart({}, x_label="x"),
    ],
)
def test_chart_without_values_reports_it(svg):
    assert_sound(svg)
    assert "no values" in texts(svg)


@pytest.mark.parametrize("missing", [math.nan, math.inf, -math.inf])
def test_missing_values_leave_gaps(missing):
    points = [(i, missing if 40 <= i < 50 else 1.0 + i) for i in range(100)]
    (path,) = paths(line(points), "l s1")

    assert path.count("M") == 2
    first, second = (corners(part) for part in path.split("M")[1:])
    assert first[-1][0] < second[0][0] - 20


def test_lone_points_are_dots():
    assert paths(line([(3, 4)]), "l o") == paths(line([(3, 4)]), "l s1")
    gaps = [(i, 1.0 if i % 2 else math.nan) for i in range(200)]
    (dots,) = paths(line(gaps), "l o")
    assert dots.count("h0") == 100


def test_few_points_are_marked_and_many_are_not():
    assert paths(line([(i, i) for i in range(30)]), "l o")
    assert not paths(line([(i, i) for i in range(31)]), "l o")


def test_ten_thousand_points_keep_their_extremes():
    draw = random.Random(3)
    points = [(i, draw.gauss(0, 1)) for i in range(10_000)]
    points[6_543] = (6_543, 25.0)
    points[1_234] = (1_234, -25.0)
    svg = line(points)
    (extremes,) = paths(svg, "l r")
    (mean,) = paths(svg, "l s1")

    assert len(svg) < 40_000
    drawn = corners(extremes)
    (x_low, _), (x_high, _) = max(drawn, key=lambda p: p[1]), min(drawn, key=lambda p: p[1])
    left, right = drawn[0][0], drawn[-1][0]
    assert (x_low - left) / (right - left) == pytest.approx(0.1234, abs=0.003)
    assert (x_high - left) / (right - left) == pytest.approx(0.6543, abs=0.003)
    heights = [y for _, y in corners(mean)]
    assert max(heights) - min(heights) < 0.3 * (
        drawn and max(y for _, y in drawn) - min(y for _, y in drawn)
    )


def test_values_decide_heights():
    (path,) = paths(line([(i, i * i) for i in range(5)]), "l s1")
    drawn = corners(path)

    heights = [drawn[0][1] - y for _, y in drawn]
    assert heights == pytest.approx([heights[-1] * i * i / 16 for i in range(5)], abs=0.2)


def test_series_are_named_and_empty_ones_report_it():
    svg = line_chart({"train": [(0, 1), (1, 2)], "valid": []}, x_label="x", y_label="y")

    assert {"train", "valid (no values)"} <= set(texts(svg))


def test_marks_widen_the_axis_and_are_named():
    svg = line([(0, 1), (10, 2)], marks={"best": 20.0, "lost": math.nan})

    assert "best" in texts(svg)
    assert "lost" not in texts(svg)
    assert "20" in texts(svg)


def test_bars_are_as_long_as_their_values():
    root = ElementTree.fromstring(bar_chart({"a": 1, "b": 2, "c": -1, "d": math.nan}, x_label="x"))
    widths = [float(bar.attrib["width"]) for bar in root.iter("rect")]

    assert widths == pytest.approx([widths[0], 2 * widths[0], widths[0]], abs=0.2)
    assert {"1", "2", "\N{MINUS SIGN}1", "not available"} <= {t.text for t in root.iter("text")}


def test_bars_past_the_threshold_are_darker():
    svg = bar_chart({"below": 0.1, "at": 0.2, "past": 0.3}, x_label="x", threshold=0.2)
    root = ElementTree.fromstring(svg)

    assert [bar.attrib["class"] for bar in root.iter("rect")] == ["f1 p", "f1 p", "f1"]
    assert "threshold 0.2" in texts(svg)


@pytest.mark.parametrize(
    "svg",
    [
        bar_chart({str(i): i for i in range(1_000)}, x_label="x"),
        interval_chart({str(i): (0, i, 2 * i) for i in range(1_000)}, x_label="x"),
    ],
)
def test_rows_that_are_not_drawn_are_counted(svg):
    assert "960 more rows are not drawn" in texts(svg)
    assert canvas(svg)[1] < 1_600


def test_intervals_lie_where_their_numbers_say():
    svg = interval_chart({"a": (-1, 0, 1), "b": (0, 1, 3)}, x_label="x")
    (a, b) = (tuple(map(float, re.findall(r"[MH]([\d.]+)", path))) for path in paths(svg, "l w"))
    centers = [float(c.attrib["cx"]) for c in ElementTree.fromstring(svg).iter("circle")]

    assert centers[0] == pytest.approx(sum(a) / 2, abs=0.1)
    assert b[0] == pytest.approx(centers[0], abs=0.1)
    assert b[1] - b[0] == pytest.approx(1.5 * (a[1] - a[0]), abs=0.2)
    assert "1 [0, 3]" in texts(svg)


def test_open_interval_reaches_the_edge():
    closed = interval_chart({"a": (0, 1, 2), "b": (-5, 0, 5)}, x_label="x")
    svg = interval_chart({"a": (-math.inf, 1, math.inf), "b": (-5, 0, 5)}, x_label="x")
    ends = [tuple(map(float, re.findall(r"[MH]([\d.]+)", path))) for path in paths(svg, "l w")]

    assert ends[0][0] < ends[1][0]
    assert ends[0][1] > ends[1][1]
    assert canvas(svg) == canvas(closed)


def test_color_series_repeats_with_dashes():
    svg = line_chart({str(i): [(0, i), (1, i)] for i in range(7)}, x_label="x", y_label="y")

    assert 'class="l s1"' in svg
    assert 'class="l s1 d"' in svg


def test_long_names_are_cut_but_kept_in_full():
    name = "first_" + "x" * 80 + "_last"
    svg = bar_chart({name: 1.0}, x_label="x")

    assert any(
        text.startswith("first_") and text.endswith("_last") and "…" in text for text in texts(svg)
    )
    assert name in [element.text for element in ElementTree.fromstring(svg).iter("title")]


def test_equal_input_gives_equal_bytes():
    values = {"b": 1.0, "a": 3.0}

    assert bar_chart(values, x_label="x") == bar_chart(dict(values), x_label="x")


def test_points_that_are_not_joined_are_dots():
    points = [(x / 10, x % 3) for x in range(40)]
    joined, dots = (
        line_chart({"trials": points}, x_label="place", y_label="loss", are_joined=are_joined)
        for are_joined in (True, False)
    )
    assert 'class="l o' not in joined
    assert dots.count("M") >= len(points)
    assert "Scatter chart of loss by place" in dots
