"""Run report: the verdict of a run, then the pages of its steps, folded; an index of all runs."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from perennial.reports.page import WORDS, Outcome, render
from perennial.reports.text import counted, duration
from perennial.reports.verdict_card import Card
from perennial.steps.stored_steps import StoredStep

_HEAD = re.compile(r'<meta name="perennial-(outcome|badge|height)" content="([\w ]{1,24})">')
_HIGHEST, _UNKNOWN = 60, 40  # rem; a frame cannot grow with its content without a script
OUTCOMES: Mapping[str, Outcome] = {
    "running": "warned",
    "finished": "passed",
    "reused": "passed",
    "failed": "failed",
    "stopped": "warned",
    "cancelled": "warned",
}
"""Status of a step → its outcome."""


@dataclass(frozen=True)
class StepPage:
    """A step of the run and the page that it wrote.

    Its outcome is `neutral` without a page if it did not run; the summary is what it found, or why
    it did not run.
    """

    step: str
    outcome: Outcome
    summary: str
    seconds: float
    html: str | None


def step_pages(
    records: Sequence[StoredStep],
    page_of: Callable[[StoredStep], str | None],
    flow: Sequence[str] = (),
) -> list[StepPage]:
    """Return the pages of the steps that ran, then of those in the flow that did not."""
    ran = [
        StepPage(each.step, OUTCOMES[each.status], _summary(each), each.seconds, page_of(each))
        for each in records
    ]
    names = {each.step for each in records}
    return [
        *ran,
        *(
            StepPage(step, "neutral", "did not run", 0.0, None)
            for step in flow
            if step not in names
        ),
    ]


def _summary(record: StoredStep) -> str:
    match record.status:
        case "failed":
            return str(record.error)
        case "stopped":
            return "stopped; checkpoint saved"
        case "cancelled":
            return "cancelled"
        case "reused":
            return f"{record.summary} (finished in an earlier attempt)"
        case _:
            return record.summary


def stitch(
    pages: Sequence[StepPage],
    *,
    title: str,
    card: Card,
    facts: Mapping[str, str],
    links: Mapping[str, str] | None = None,
) -> str:
    """Return one self-contained HTML file for the whole run.

    Each step's page is in a sandboxed frame, which runs nothing, and which inherits the report's
    policy to fetch nothing, whatever the file contains. A failed step is unfolded, no other is.
    `facts` identify the run; `links` are addresses of other reports, such as the previous run's.
    """
    longest = max((page.seconds for page in pages), default=0.0)
    return render(
        "run.html",
        title=title,
        summary="",
        outcome=card.outcome,
        badge=card.word,
        card=card,
        facts=facts,
        links=links or {},
        steps=[_shown_step(page, longest) for page in pages],
        height=_HIGHEST,
    )


def index_of_runs(rows: Sequence[Mapping[str, Any]], *, total: int, place: str) -> str:
    """Return an HTML file that lists the newest runs of a home, with links to their reports.

    A row has run, model, pipeline, card, start, duration, and report: its address relative to the
    index, empty without one. The newest comes first.
    """
    count = f"{counted(total, 'run')} in {place}; the newest comes first."
    left = f" {total - len(rows):,} earlier ones are not listed." if total > len(rows) else ""
    return render(
        "index.html",
        title="Runs",
        summary=count + left,
        outcome="neutral",
        badge="",
        height=_HIGHEST,
        rows=rows,
    )


def _shown_step(page: StepPage, longest: float) -> dict[str, Any]:
    """Return the values of the template; `share` is the part of the longest step's time."""
    # Only the head: a page holds texts of users, which could imitate these lines further down.
    head = dict(_HEAD.findall((page.html or "")[:2000]))
    outcome, word = page.outcome, WORDS[page.outcome]
    # The page knows warnings; a failed step has failed whatever the page reports.
    if outcome != "failed" and head.get("outcome") in get_args(Outcome):
        outcome = cast("Outcome", head["outcome"])
        word = head.get("badge") or WORDS[outcome]
    height = int(head["height"]) if head.get("height", "").isdecimal() else _UNKNOWN
    share = 100 * page.seconds / longest if longest > 0 else 0.0
    return {
        "name": page.step,
        "outcome": outcome,
        "word": word,
        "summary": page.summary,
        "html": page.html,
        "did_run": page.html is not None or page.outcome != "neutral",
        "is_open": page.outcome == "failed",
        "duration": duration(page.seconds),
        "share": f"{max(share, 0.0):.1f}",
        "height": min(height, _HIGHEST),
    }
