"""Run report: the pages of a run's steps in one file, with a picture of the flow on top."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perennial.reports.excerpt import Excerpt, excerpt
from perennial.reports.page import SIGNS, WORDS, Outcome, badge, document, header, named_values
from perennial.reports.text import duration, escaped


@dataclass(frozen=True)
class StepPage:
    """A step of the run and the page that it wrote.

    Args:
        step: The step's name, as in the dashboard.
        outcome: How it ended; `neutral` without a page means that it did not run.
        summary: What it found, or why it did not run.
        seconds: How long it took.
        html: Its page; None when there is none.
    """

    step: str
    outcome: Outcome
    summary: str
    seconds: float
    html: str | None


@dataclass(frozen=True)
class _Part:
    """A step as the run report shows it."""

    page: StepPage
    excerpt: Excerpt
    index: int

    @property
    def did_run(self) -> bool:
        return self.page.html is not None or self.page.outcome != "neutral"

    @property
    def outcome(self) -> Outcome:
        """Outcome in the page, which knows warnings; a failed step has failed whatever the page."""
        if self.page.outcome == "failed" or self.excerpt.outcome is None:
            return self.page.outcome
        return self.excerpt.outcome


def stitch(
    pages: Sequence[StepPage],
    *,
    title: str,
    summary: str,
    outcome: Outcome,
    facts: Mapping[str, str],
) -> str:
    """One self-contained HTML file for the whole run.

    Args:
        pages: The steps in the order of the flow, also those that did not run.
        title: The run's name.
        summary: How the run ended, in a sentence.
        outcome: How the run ended.
        facts: What identifies the run, by name.
    """
    parts = [
        _Part(page, Excerpt() if page.html is None else excerpt(page.html), index)
        for index, page in enumerate(pages, start=1)
    ]
    longest = max((page.seconds for page in pages), default=0.0)
    boxes = "".join(_box(part, longest) for part in parts)
    body = (
        f"{header(title, outcome, summary)}{named_values(facts)}"
        f'<nav id="flow" aria-label="Steps of the run"><ol class="flow">{boxes}</ol></nav>'
        f"<main>{''.join(map(_section, parts))}</main>"
    )
    return document(title, body, outcome)


def _box(part: _Part, longest: float) -> str:
    """A step in the picture of the flow: name, sign, time, and time as a bar."""
    page, outcome = part.page, part.outcome
    # Long names may break after an underscore.
    name = escaped(page.step).replace("_", "_<wbr>")
    link = f'<a href="#step-{part.index}"><strong>{name}</strong>'
    if not part.did_run:
        return f'<li class="absent">{link}<span>Did not run</span></a></li>'
    share = 100 * page.seconds / longest if longest > 0 else 0.0
    return (
        f'<li class="{outcome}">{link}'
        f'<span><b aria-hidden="true">{SIGNS[outcome]}</b> {WORDS[outcome]}</span>'
        f"<span>{escaped(duration(page.seconds))}</span>"
        f'<i style="width:{max(share, 0):.1f}%"></i></a></li>'
    )


def _section(part: _Part) -> str:
    page = part.page
    if part.did_run:
        time = escaped(duration(page.seconds))
        state = f'{badge(part.outcome)} <span class="note">{time}</span>'
    else:
        state = '<span class="badge neutral">Did not run</span>'
    return (
        f'<section id="step-{part.index}"><h2>{part.index} {escaped(page.step)} {state}'
        '<a class="back" href="#flow" aria-label="Back to the flow">↑</a></h2>'
        f"<p>{escaped(page.summary)}</p>{_content(part)}</section>"
    )


def _content(part: _Part) -> str:
    if part.excerpt.refusal:
        return f'<p class="note">Its report is left out: {escaped(part.excerpt.refusal)}.</p>'
    if part.page.html is None:
        return '<p class="note">No report.</p>' if part.did_run else ""
    # One level down: below the heading of the step. Text is escaped, so only tags match.
    return part.excerpt.content.replace("<h2>", "<h3>").replace("</h2>", "</h3>")
