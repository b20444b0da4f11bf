"""Excerpt: the main content of a page, if its file holds nothing that `Page` never writes."""

from dataclasses import dataclass
from html.parser import HTMLParser
from typing import cast, get_args

from perennial.reports.page import CONTENT_ELEMENTS, GENERATOR, OUTCOME, Outcome
from perennial.reports.svg import SVG_ELEMENTS, is_forbidden

_DOCUMENT_ELEMENTS = frozenset({"html", "head", "meta", "title", "style", "body", "header", "h1"})
_UNCLOSED = frozenset({"meta"})
_OPENING, _CLOSING = "<main>", "</main>"


@dataclass(frozen=True)
class Excerpt:
    """Content that may be taken over from a page.

    Args:
        content: The content of its `<main>`; empty when refused.
        outcome: The outcome in the page; None when refused.
        refusal: Why nothing is taken over; empty when it is.
    """

    content: str = ""
    outcome: Outcome | None = None
    refusal: str = ""


def excerpt(html: str) -> Excerpt:
    """The main content of a page, checked element by element, or why it is refused."""
    reader = _Reader(html)
    if reader.named.get("generator") != GENERATOR:
        return Excerpt(refusal="it was not written by Perennial")
    if reader.fault:
        return Excerpt(refusal=reader.fault)
    outcome = reader.named.get(OUTCOME)
    if html.count(_OPENING) != 1 or html.count(_CLOSING) != 1 or outcome not in get_args(Outcome):
        return Excerpt(refusal="it is damaged")
    content = html.partition(_OPENING)[2].partition(_CLOSING)[0]
    return Excerpt(content, cast("Outcome", outcome))


class _Reader(HTMLParser):
    """Reads a page once; `fault` is the first thing that does not belong there."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.fault = ""
        self.named: dict[str, str] = {}
        self._open: list[str] = []
        self._allowed = _DOCUMENT_ELEMENTS | CONTENT_ELEMENTS | _lowered(SVG_ELEMENTS) | {"main"}
        self.feed(html)
        self.close()
        if self._open:
            self._blame(f"<{self._open[-1]}> is not closed")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._check(tag, attrs)
        if tag not in _UNCLOSED:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._check(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self._blame(f"</{tag}> closes nothing")

    def handle_comment(self, data: str) -> None:
        self._blame("it contains a comment")

    def _check(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "meta" and "name" in values:
            self.named[values["name"]] = values.get("content", "")
        if tag not in self._allowed:
            self._blame(f"it contains <{tag}>")
        for name, value in values.items():
            if is_forbidden(name, value) or name in {"id", "style"}:
                self._blame(f"it contains <{tag} {name}=…>")

    def _blame(self, fault: str) -> None:
        self.fault = self.fault or fault


def _lowered(names: frozenset[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)
