"""Page: the one HTML file in which a step shows what it found."""

import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from perennial.contracts.artifact import write_atomically
from perennial.reports.text import MISSING, is_numeric, printable, shown

Outcome = Literal["passed", "warned", "failed", "neutral"]

SIGNS: Mapping[Outcome, str] = {"passed": "✓", "warned": "!", "failed": "✕", "neutral": "i"}
WORDS: Mapping[Outcome, str] = {
    "passed": "Passed",
    "warned": "Warning",
    "failed": "Failed",
    "neutral": "For information",
}
SVG_ELEMENTS = frozenset(
    {
        "svg",
        "g",
        "title",
        "desc",
        "text",
        "tspan",
        "path",
        "line",
        "polyline",
        "polygon",
        "rect",
        "circle",
        "ellipse",
        "image",
    }
)
_NAMESPACE = "{http://www.w3.org/2000/svg}"
TEMPLATES = Path(__file__).with_name("templates")
# What Markdown takes for the begin of HTML or of an address; `p < 0.05` is none.
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_STACKED_COLUMNS, _FITTING_CHARACTERS = 16, 34
"""On a narrow screen, a row of a wider table becomes a list; beyond these columns, it scrolls."""


class Page:
    """A report, built from top to bottom; everything but charts is escaped.

    Args:
        title: What the page is about.
        outcome: Its color and sign.
        summary: What was found, in a sentence.
        badge: The verdict in a word; empty for the outcome's own.
    """

    def __init__(self, title: str, *, outcome: Outcome, summary: str, badge: str = "") -> None:
        self.title = title
        self.outcome = outcome
        self.summary = summary
        self.badge = badge
        self._content: list[tuple[str, dict[str, Any]]] = []  # macro of blocks.html, arguments
        self._height = 8.0

    def heading(self, text: str) -> None:
        """Start a part of the page."""
        self._add("heading", 4.0, text=text)

    def text(self, text: str) -> None:
        """Add a paragraph; line ends are kept."""
        self._add("text", 1.0 + 1.5 * (text.count("\n") + 1 + len(text) // 100), text=text)

    def values(self, values: Mapping[str, object]) -> None:
        """Named values side by side."""
        self._add("values", 2.0 + 3.0 * math.ceil(len(values) / 6), pairs=values)

    def table(
        self,
        header: Sequence[str],
        rows: Sequence[Sequence[object]],
        caption: str = "",
        outcomes: Sequence[Outcome] | None = None,
        *,
        is_named: bool = True,
    ) -> None:
        """Add a table; columns of numbers are aligned to the right.

        Args:
            header: The columns' names.
            rows: One value per column in each row.
            caption: What the table shows.
            outcomes: One per row: a sign in front and a tint behind it.
            is_named: Show the caption; else a heading repeats it, and only screen readers get it.

        Raises:
            ValueError: a row is not as long as the header, or an outcome is missing.
        """
        table = _table(header, rows, caption, outcomes, is_named=is_named)
        self._add("table", min(44.0, 5.0 + 2.2 * len(rows)), **table)

    def folded_table(
        self, summary: str, header: Sequence[str], rows: Sequence[Sequence[object]]
    ) -> None:
        """Add a table, folded away under its summary."""
        self._add("folded_table", 2.5, **_table(header, rows, summary, None, is_named=False))

    def figure(self, svg: str, caption: str) -> None:
        """Add a chart; neighbouring figures stand side by side where there is room.

        Raises:
            ValueError: the text is not a plain, self-contained SVG.
        """
        drawing = (Markup(checked_svg(svg)), caption)
        if self._content and self._content[-1][0] == "figures":
            self._content[-1][1]["drawings"].append(drawing)
            self._height += 10.0
        else:
            self._add("figures", 22.0, drawings=[drawing])

    def details(self, summary: str, text: str) -> None:
        """Add preformatted text, folded away under its summary."""
        self._add("details", 2.5, summary=summary, text=text)

    def html(self) -> str:
        """Return the whole page."""
        return render(
            "page.html",
            title=self.title,
            outcome=self.outcome,
            badge=self.badge or WORDS[self.outcome],
            summary=self.summary,
            height=round(self._height),
            content=self._content,
        )

    def write(self, target: Path) -> None:
        """Store the page as one file."""
        write_atomically(target, self.html().encode())

    def _add(self, macro: str, height: float, **arguments: object) -> None:
        self._content.append((macro, arguments))
        self._height += height  # in rem, on a wide screen: a run's report makes room for it


def render(template: str, **values: object) -> str:
    """Return a template filled with values, each escaped in HTML unless it is `Markup`.

    In Markdown a value may format text, but not be HTML, which viewers would take as a page's own.
    """
    environment = _templates()
    if template.endswith(".md"):
        environment = environment.overlay(finalize=_printed_in_markdown)
    return environment.get_template(template).render(values)


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        finalize=_printed,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(SIGNS=SIGNS, WORDS=WORDS)
    environment.filters["fmt"] = format
    environment.filters["code"] = _with_code
    return environment


def _with_code(text: str) -> Markup:
    """Return a sentence in which what stands between backticks is shown as code."""
    escaped = str(escape(printable(text)))
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped))


def _printed(value: object) -> str:
    """Return a value as people write it, to be escaped by the template."""
    return value if isinstance(value, Markup) else printable(shown(value))


def _printed_in_markdown(value: object) -> str:
    """Return a value without tags: names of columns and classes are the data's."""
    return _TAG.sub("&lt;", _printed(value))


def _table(
    header: Sequence[str],
    rows: Sequence[Sequence[object]],
    caption: str,
    outcomes: Sequence[Outcome] | None,
    *,
    is_named: bool,
) -> dict[str, Any]:
    if any(len(row) != len(header) for row in rows):
        raise ValueError(f"each row of the table {caption!r} needs {len(header)} values")
    if outcomes is not None and len(outcomes) != len(rows):
        raise ValueError(
            f"the table {caption!r} has {len(rows)} rows, but {len(outcomes)} outcomes"
        )
    columns = zip(*rows, strict=True) if len(rows) else ((),) * len(header)
    return {
        "header": header,
        "rows": rows,
        "caption": caption,
        "is_named": is_named,
        "right": [_is_number_column(column) for column in columns],
        "outcomes": outcomes,
        "narrow": _narrow_class(header, rows),
    }


def _narrow_class(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return how columns that do not fit side by side are shown on a narrow screen.

    Each row becomes a block of named values: a line each, or, of many, side by side in running
    lines.
    """
    columns = zip(header, *rows, strict=True)
    widths = [max(len(shown(value)) for value in column) + 2 for column in columns]
    if sum(widths) <= _FITTING_CHARACTERS:
        return ""
    return "stacked" if len(widths) <= _STACKED_COLUMNS else "stacked running"


def _is_number_column(values: Sequence[object]) -> bool:
    present = [value for value in values if value is not None and value not in ("", MISSING, "-")]
    return bool(present) and all(is_numeric(value) for value in present)


def checked_svg(svg: str) -> str:
    """Return the drawing, unchanged.

    Raises:
        ValueError: it is not one well-formed `<svg>` of plain shapes and text, or it refers to
            something outside of itself.
    """
    # A declaration could define entities that expand without limit in the parser below.
    if "<!" in svg or "<?" in svg:
        raise ValueError("a figure must be a bare <svg> without declarations or comments")
    try:
        root = ElementTree.fromstring(svg)
    except ElementTree.ParseError as error:
        raise ValueError(f"a figure must be one well-formed <svg>: {error}") from error
    if root.tag.removeprefix(_NAMESPACE) != "svg":
        raise ValueError(f"a figure must be an <svg>, not <{root.tag}>")
    for element in root.iter():
        _check_element(element)
    return svg


def is_forbidden(attribute: str, value: str) -> bool:
    """Whether an attribute could run something or refer to something outside of the page."""
    if attribute == "aria-label":  # only ever read aloud, and names of columns may be odd
        return False
    if attribute.startswith("on") or "url(" in value.lower():
        return True
    is_picture = attribute == "href" and value.startswith("data:image/png;base64,")
    return attribute in {"href", "src", "srcset", "xlink:href"} and not is_picture


def _check_element(element: ElementTree.Element) -> None:
    name = str(element.tag).removeprefix(_NAMESPACE)
    if name not in SVG_ELEMENTS:
        raise ValueError(f"a figure may not contain <{name}>; allowed: {sorted(SVG_ELEMENTS)}")
    for attribute, value in element.attrib.items():
        local = attribute.rpartition("}")[2].lower()
        # Ids of two figures on a page could collide; a style can name addresses.
        if is_forbidden(local, value) or local in {"id", "style"}:
            raise ValueError(f"a figure may not have {attribute}={value[:40]!r} on <{name}>")
