"""Page: the one HTML file in which a step shows what it found."""

from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Literal

from perennial.contracts.artifact import write_atomically
from perennial.reports.svg import checked_svg
from perennial.reports.text import MISSING, escaped, is_numeric

Outcome = Literal["passed", "warned", "failed", "neutral"]

SIGNS: Mapping[Outcome, str] = {"passed": "✓", "warned": "!", "failed": "✕", "neutral": "i"}
WORDS: Mapping[Outcome, str] = {
    "passed": "Passed",
    "warned": "Warning",
    "failed": "Failed",
    "neutral": "For information",
}
GENERATOR = "perennial"
OUTCOME = "perennial-outcome"
CONTENT_ELEMENTS = frozenset(
    {"h2", "p", "dl", "div", "dt", "dd", "table", "caption", "thead", "tbody", "tr", "th", "td",
     "span", "figure", "figcaption", "details", "summary", "pre"}
)  # fmt: skip
"""Elements of the main content of a page, besides drawings."""
# The dashboard shows pages in a sandboxed frame and people open them from disk: neither may ever
# fetch or run anything, whatever the data under report contains.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


class Page:
    """A report, built from top to bottom; everything but charts is escaped.

    Args:
        title: What was done, such as `Validate data`.
        outcome: How it ended.
        summary: The finding in one sentence.
    """

    def __init__(self, title: str, *, outcome: Outcome, summary: str) -> None:
        self.title = title
        self.outcome = outcome
        self.summary = summary
        self._blocks: list[str] = []
        self._figures: list[str] = []

    def heading(self, text: str) -> None:
        """Start a part of the page."""
        self._add(f"<h2>{escaped(text)}</h2>")

    def text(self, text: str) -> None:
        """A paragraph; line ends are kept."""
        self._add(f"<p>{escaped(text)}</p>")

    def values(self, values: Mapping[str, object]) -> None:
        """Named values side by side."""
        self._add(named_values(values))

    def table(
        self,
        header: Sequence[str],
        rows: Sequence[Sequence[object]],
        caption: str = "",
        outcomes: Sequence[Outcome] | None = None,
        *,
        is_named: bool = True,
    ) -> None:
        """A table; columns of numbers are aligned to the right.

        Args:
            header: The columns' names.
            rows: One value per column in each row.
            caption: What the table shows.
            outcomes: One per row: a sign in front and a tint behind it.
            is_named: Show the caption; else a heading repeats it, and only screen readers get it.

        Raises:
            ValueError: a row is not as long as the header, or an outcome is missing.
        """
        self._add(_table(header, rows, caption, outcomes, is_named=is_named))

    def folded_table(
        self, summary: str, header: Sequence[str], rows: Sequence[Sequence[object]]
    ) -> None:
        """A table, folded away under its summary.

        Raises:
            ValueError: a row is not as long as the header.
        """
        table = _table(header, rows, summary, None, is_named=False)
        self._add(f"<details><summary>{escaped(summary)}</summary>{table}</details>")

    def figure(self, svg: str, caption: str) -> None:
        """A chart; neighbouring figures stand side by side where there is room.

        Raises:
            ValueError: the text is not a plain, self-contained SVG.
        """
        drawing = checked_svg(svg)
        self._figures.append(
            f'<figure><div class="chart">{drawing}</div>'
            f"<figcaption>{escaped(caption)}</figcaption></figure>"
        )

    def details(self, summary: str, text: str) -> None:
        """Preformatted text, folded away under its summary."""
        self._add(
            f"<details><summary>{escaped(summary)}</summary><pre>{escaped(text)}</pre></details>"
        )

    def html(self) -> str:
        """The whole page."""
        self._flush()
        body = (
            f"{header(self.title, self.outcome, self.summary)}<main>{''.join(self._blocks)}</main>"
        )
        return document(self.title, body, self.outcome)

    def write(self, target: Path) -> None:
        """Store the page as one file."""
        write_atomically(target, self.html().encode())

    def _add(self, block: str) -> None:
        self._flush()
        self._blocks.append(block)

    def _flush(self) -> None:
        """Close a group of neighbouring figures."""
        if self._figures:
            self._blocks.append(f'<div class="figures">{"".join(self._figures)}</div>')
            self._figures.clear()


def document(title: str, body: str, outcome: Outcome) -> str:
    """A self-contained HTML document around a body that is already safe."""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
        f'<meta name="generator" content="{GENERATOR}"><meta name="{OUTCOME}" content="{outcome}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escaped(title)}</title><style>{_style()}</style></head><body>{body}</body></html>\n"
    )


def standalone(svg: str) -> str:
    """A chart as a file of its own, in the colors of a page, light and dark."""
    inner = checked_svg(svg).removeprefix("<svg")
    style = f"<style>{escape(_style(), quote=False)}svg{{font-family:sans-serif}}</style>"
    opening, _, rest = inner.partition(">")
    return f'<svg xmlns="http://www.w3.org/2000/svg"{opening}>{style}{rest}\n'


def header(title: str, outcome: Outcome, summary: str) -> str:
    """Head of a page: title, outcome, finding."""
    return f"<header><h1>{escaped(title)}</h1>{badge(outcome)}<p>{escaped(summary)}</p></header>"


def named_values(values: Mapping[str, object]) -> str:
    """Named values side by side."""
    pairs = (
        f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd></div>"
        for name, value in values.items()
    )
    return f"<dl>{''.join(pairs)}</dl>"


def badge(outcome: Outcome) -> str:
    """An outcome as a sign and a word."""
    return (
        f'<span class="badge {outcome}"><span aria-hidden="true">{SIGNS[outcome]}</span> '
        f"{WORDS[outcome]}</span>"
    )


def _table(
    header: Sequence[str],
    rows: Sequence[Sequence[object]],
    caption: str,
    outcomes: Sequence[Outcome] | None,
    *,
    is_named: bool = True,
) -> str:
    if any(len(row) != len(header) for row in rows):
        raise ValueError(f"each row of the table {caption!r} needs {len(header)} values")
    columns = zip(*rows, strict=True) if len(rows) else ((),) * len(header)
    right = [_is_number_column(column) for column in columns]
    judged = [None] * len(rows) if outcomes is None else outcomes
    body = "".join(_row(row, right, outcome) for row, outcome in zip(rows, judged, strict=True))
    head = _column_names(header, right, outcomes is not None)
    title = f"<caption>{escaped(caption)}</caption>" if caption and is_named else ""
    nothing = "" if len(rows) else '<p class="note">No rows.</p>'
    return (
        '<div class="scroll" role="region" tabindex="0" '
        f'aria-label="{escaped(caption or "Table")}">'
        f"<table>{title}<thead>{head}</thead><tbody>{body}</tbody></table></div>{nothing}"
    )


def _column_names(names: Sequence[str], right: Sequence[bool], has_outcomes: bool) -> str:
    sign = '<th scope="col"><span class="hidden">Outcome</span></th>' if has_outcomes else ""
    cells = (
        f'<th scope="col"{_alignment(is_right)}>{escaped(name)}</th>'
        for name, is_right in zip(names, right, strict=True)
    )
    return f"<tr>{sign}{''.join(cells)}</tr>"


def _row(row: Sequence[object], right: Sequence[bool], outcome: Outcome | None) -> str:
    cells = "".join(
        f"<td{_alignment(is_right)}>{escaped(value)}</td>"
        for value, is_right in zip(row, right, strict=True)
    )
    if outcome is None:
        return f"<tr>{cells}</tr>"
    return (
        f'<tr class="{outcome}"><td class="sign"><span aria-hidden="true">{SIGNS[outcome]}</span>'
        f'<span class="hidden">{WORDS[outcome]}</span></td>{cells}</tr>'
    )


def _alignment(is_right: bool) -> str:
    return ' class="n"' if is_right else ""


def _is_number_column(values: Sequence[object]) -> bool:
    present = [value for value in values if value is not None and value not in ("", MISSING, "-")]
    return bool(present) and all(is_numeric(value) for value in present)


@cache
def _style() -> str:
    return Path(__file__).with_name("page.css").read_text(encoding="utf-8")
