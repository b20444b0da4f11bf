"""Run report: the pages of a run's steps in one file, with a picture of the flow on top."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from perennial.reports.page import Outcome, render
from perennial.reports.text import duration

_HEAD = re.compile(r'<meta name="perennial-(outcome|height)" content="(\w+)">')
_HIGHEST, _UNKNOWN = 60, 40  # rem; a frame cannot grow with its content without a script


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


def stitch(
    pages: Sequence[StepPage],
    *,
    title: str,
    summary: str,
    outcome: Outcome,
    facts: Mapping[str, str],
) -> str:
    """One self-contained HTML file for the whole run.

    Each step's page is in a sandboxed frame, which runs nothing, and which inherits the report's
    policy to fetch nothing, whatever the file contains.
    """
    longest = max((page.seconds for page in pages), default=0.0)
    steps = [_shown_step(page, longest) for page in pages]
    return render(
        "run.html",
        title=title,
        summary=summary,
        outcome=outcome,
        facts=facts,
        steps=steps,
        height=_HIGHEST,
    )


def _shown_step(page: StepPage, longest: float) -> dict[str, Any]:
    """Return the values of the template; `share` is the part of the longest step's time."""
    head = dict(_HEAD.findall((page.html or "")[:2000]))
    outcome = page.outcome
    # The page knows warnings; a failed step has failed whatever the page reports.
    if outcome != "failed" and head.get("outcome") in get_args(Outcome):
        outcome = cast("Outcome", head["outcome"])
    height = int(head["height"]) if head.get("height", "").isdecimal() else _UNKNOWN
    share = 100 * page.seconds / longest if longest > 0 else 0.0
    return {
        "name": page.step,
        "outcome": outcome,
        "summary": page.summary,
        "html": page.html,
        "did_run": page.html is not None or page.outcome != "neutral",
        "duration": duration(page.seconds),
        "share": f"{max(share, 0.0):.1f}",
        "height": min(height, _HIGHEST),
    }
