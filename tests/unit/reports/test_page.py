import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perennial.reports.charts import line_chart
from perennial.reports.page import Page
from perennial.reports.text import printable, shown

CHART = line_chart({"loss": [(0, 1.0), (1, 0.5)]}, x_label="update", y_label="loss")
VALUES = st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none())


class Reader(HTMLParser):
    """What a browser would make of a page: text and attributes by element."""

    def __init__(self, html):
        super().__init__()
        self.texts = []
        self.elements = []
        self._open = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self._open.append((tag, ""))

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        opened, text = self._open.pop()
        assert opened == tag
        self.texts.append((tag, text))

    def handle_data(self, data):
        if self._open:
            tag, text = self._open[-1]
            self._open[-1] = (tag, text + data)

    def of(self, tag):
        return [text for name, text in self.texts if name == tag]


def page(**changes):
    return Page(
        **{"title": "Validate data", "outcome": "passed", "summary": "Fit to train on."} | changes
    )


@settings(max_examples=200)
@given(text=st.text(), value=VALUES, cell=VALUES)
def test_any_text_and_number_survives_escaping(text, value, cell):
    built = page(title=text, summary=text)
    built.heading(text)
    built.text(text)
    built.values({text: value})
    built.table([text], [[cell]], text)
    built.figure(CHART, text)
    built.details(text, text)
    reader = Reader(built.html())

    expected = printable(text)
    for tag in ("h1", "h2", "dt", "th", "figcaption", "summary", "pre"):
        assert reader.of(tag) == [expected], tag
    assert reader.of("p") == [expected, expected]
    assert reader.of("dd") == [printable(shown(value))]
    assert reader.of("td") == [printable(shown(cell))]


def test_page_refers_to_nothing_outside_and_runs_nothing():
    built = page()
    built.figure(CHART, "Loss.")
    reader = Reader(built.html())

    names = {name for _, attributes in reader.elements for name in attributes}
    assert not {"src", "href", "srcset"} & names
    assert not [name for name in names if name.startswith("on")]
    assert not {"script", "link", "iframe", "object"} & {tag for tag, _ in reader.elements}
    assert not re.search(r"url\(|@import|https?:", built.html())
    policy = next(a["content"] for _, a in reader.elements if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")


def test_equal_pages_are_equal_bytes(tmp_path):
    for name in ("one", "two"):
        built = page()
        built.table(["a"], [[1.5]], "numbers")
        built.figure(CHART, "Loss.")
        built.write(tmp_path / name)

    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["one", "two"]


def test_reading_a_page_twice_changes_nothing():
    built = page()
    built.figure(CHART, "Loss.")

    assert built.html() == built.html()


@pytest.mark.parametrize(
    ("outcome", "sign", "word"),
    [
        ("passed", "✓", "Passed"),
        ("warned", "!", "Warning"),
        ("failed", "✕", "Failed"),
        ("neutral", "i", "For information"),
    ],
)
def test_outcome_is_a_sign_and_a_word_not_only_a_color(outcome, sign, word):
    built = page(outcome=outcome)
    built.table(["check"], [["nulls"]], outcomes=[outcome])
    main = built.html().partition("<body>")[2]

    assert main.count(sign) >= 2
    assert main.count(word) >= 2


@pytest.mark.parametrize(
    ("column", "is_right"),
    [
        ([1, 2.5, None], True),
        (["81,000", "12 %", ""], True),
        ([1, "about 2"], False),
        (["UA", "AA"], False),
        ([None, None], False),
        ([True, False], False),
    ],
)
def test_columns_of_numbers_are_aligned_to_the_right(column, is_right):
    built = page()
    built.table(["name", "value"], [["x", value] for value in column])

    assert built.html().count('<td class="n">') == is_right * len(column)
    assert built.html().count('<th scope="col" class="n">') == is_right


def test_table_without_rows_reports_it():
    built = page()
    built.table(["a", "b"], [], "Duplicates")

    assert "No rows." in built.html()
    assert Reader(built.html()).of("th") == ["a", "b"]


def test_table_with_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="'Facts' needs 2 values"):
        page().table(["a", "b"], [[1, 2], [3]], "Facts")


def test_table_with_too_few_outcomes_is_refused():
    with pytest.raises(ValueError, match="2 rows, but 1 outcomes"):
        page().table(["a"], [[1], [2]], outcomes=["passed"])


def test_neighbouring_figures_share_a_row():
    built = page()
    built.figure(CHART, "one")
    built.figure(CHART, "two")
    built.text("between")
    built.figure(CHART, "three")

    assert built.html().count('<div class="figures">') == 2
    assert Reader(built.html()).of("figcaption") == ["one", "two", "three"]


def test_pages_are_small():
    assert len(page().html()) < 10_000
