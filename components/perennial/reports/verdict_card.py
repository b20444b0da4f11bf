"""Verdict card: what became of a run, the chart that decided it, and why; first on every run page.

Made from the results of the run's steps alone, so that a laptop and a cluster show the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from perennial.contracts.gate import Comparison, GateReason, Measurement, Registration, Verdict
from perennial.contracts.monitoring import DriftReport, RetrainingDecision, WindowDrift
from perennial.contracts.study import Decision, StudyJudgement
from perennial.reports.charts import bar_chart, interval_chart, line_chart
from perennial.reports.drawing import seconds_at
from perennial.reports.page import Outcome, checked_svg
from perennial.reports.text import number
from perennial.steps.stored_steps import Result, StoredStep

RunStatus = Literal["running", "succeeded", "failed", "cancelled"]
RunVerdict = Literal[
    "Promoted",
    "Champion kept",
    "Not promoted",
    "Not retrained",
    "Adopt",
    "Reject",
    "Inconclusive",
    "Failed",
    "Cancelled",
    "Running",
    "Finished",
]
"""`Not promoted` is a rejected challenger without a champion; `Adopt`, `Reject` and `Inconclusive`
are a study's; `Finished`, a run without results."""
OUTCOMES: dict[RunVerdict, Outcome] = {
    "Promoted": "passed",
    "Adopt": "passed",
    "Failed": "failed",
    "Cancelled": "warned",
}
"""All others are neutral."""
BULLETS = 3
STUDY_WORDS: dict[Decision, RunVerdict] = {
    "adopt": "Adopt",
    "reject": "Reject",
    "inconclusive": "Inconclusive",
}
UNSET = "is not set"  # a trigger that the contract does not use


@dataclass(frozen=True)
class RunFindings:
    """Results of a run's steps, as far as the run came; None for a step without a result.

    Attributes:
        trigger: Why the run was started, in words.
        step: The step that failed, or at which the run was stopped or is.
        error: Why it failed: problem, evidence, next action, one a line.
        cancelled_by: Who stopped the run; empty if that is not known.
        go_on: How to continue a run that failed or was stopped, or where its log is.
    """

    model: str
    status: RunStatus
    trigger: str
    step: str = ""
    error: str = ""
    cancelled_by: str = ""
    go_on: str = ""
    decision: RetrainingDecision | None = None
    drift: DriftReport | None = None
    verdict: Verdict | None = None
    registration: Registration | None = None
    study: StudyJudgement | None = None

    @property
    def word(self) -> RunVerdict:
        """The verdict on the run: one of a closed set, the same word everywhere."""
        ended: dict[str, RunVerdict] = {
            "failed": "Failed",
            "cancelled": "Cancelled",
            "running": "Running",
        }
        if self.status in ended:
            return ended[self.status]
        if self.study is not None:
            return STUDY_WORDS[self.study.decision]
        if self.verdict is not None:
            return gate_word(self.verdict, self.registration)
        if self.decision is not None and not self.decision.retrain:
            return "Not retrained"
        return "Finished"


def find_results(
    records: Sequence[StoredStep], model: str, status: RunStatus, trigger: str = ""
) -> RunFindings:
    """Return what the steps of a run found so far."""
    failed = [record for record in records if record.status == "failed"]
    cancelled = [record for record in records if record.status == "cancelled"]
    # The step to name: where it failed or was stopped, else the newest.
    last = next(iter(failed or cancelled or records[-1:]), None)

    def result(kind: type[Result]) -> Result | None:
        return next((found for each in records if (found := each.result(kind))), None)

    made = result(Registration)
    return RunFindings(
        model=model,
        status=status,
        trigger=trigger,
        step=last.step if last is not None else "",
        error=str(failed[0].error) if failed else "",
        decision=result(RetrainingDecision),
        drift=result(DriftReport),
        verdict=(made.judged_again if made is not None else None) or result(Verdict),
        registration=made,
        study=result(StudyJudgement),
    )


def gate_word(verdict: Verdict, registration: Registration | None = None) -> RunVerdict:
    """Return what became of a challenger; the champion may have moved after the verdict."""
    kept: RunVerdict = "Champion kept" if verdict.champion_version else "Not promoted"
    if registration is not None and not registration.is_champion:
        return kept
    return "Promoted" if verdict.promote else kept


@dataclass(frozen=True)
class Card:
    """What the template shows.

    Attributes:
        chart: SVG with the threshold that decided drawn in, and its caption; empty without one.
        figures: Name, value and explanation of the numbers that belong in one row.
    """

    word: RunVerdict
    outcome: Outcome
    headline: str
    bullets: tuple[str, ...]
    trigger: str
    chart: tuple[str, str] | None = None
    figures: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()


def verdict_card(found: RunFindings) -> Card:
    """Return the card of a run."""
    parts: dict[str, Any] = {}
    if found.word == "Failed":
        problem, *details = _split_error(found.error)
        parts["headline"] = f"{found.step} failed: {problem}" if found.step else problem
        parts["bullets"] = [*details, found.go_on]
    elif found.word in ("Cancelled", "Running"):
        parts = _under_way(found)
    elif found.study is not None:
        parts = _study_parts(found.study)
    elif found.verdict is not None:
        parts = _gate_parts(found, found.verdict)
    elif found.decision is not None:
        parts = _monitoring_parts(found.decision, found.drift)
    else:
        parts["headline"] = "The run ended without a result that this page can read."
    bullets = tuple([each for each in parts.pop("bullets", ()) if each][:BULLETS])
    outcome = OUTCOMES.get(found.word, "neutral")
    return Card(found.word, outcome, trigger=found.trigger, bullets=bullets, **parts)


def _under_way(found: RunFindings) -> dict[str, Any]:
    at = f" at {found.step}" if found.step else ""
    if found.word == "Running":
        return {"headline": f"The run is under way{at}."}
    by = f" by {found.cancelled_by}" if found.cancelled_by else ""
    return {
        "headline": f"The run was stopped{at}{by}.",
        "bullets": ["Nothing was promoted.", found.go_on],
    }


def _gate_parts(found: RunFindings, verdict: Verdict) -> dict[str, Any]:
    decisive = _decisive(verdict)
    broken = [reason for reason in verdict.reasons if not reason.held]
    conditions = f"Conditions of the gate: all {len(verdict.reasons)} met."
    if broken:
        names, met = "; ".join(one.condition for one in broken), len(verdict.reasons) - len(broken)
        conditions = f"Conditions of the gate: {met} met, {len(broken)} not met ({names})."
    rows, blocks = verdict.test_rows, verdict.test_blocks
    measured = f"Measured on {rows:,} test rows in {blocks:,} independent blocks."
    return {
        "headline": _headline(decisive, verdict),
        "bullets": [conditions, measured, _consequence(found, verdict)],
        "chart": _draw(decisive.measured) if decisive and decisive.measured else None,
        "figures": _figures(verdict.comparisons[0], decisive) if verdict.comparisons else (),
        "notes": verdict.notes,
    }


def _decisive(verdict: Verdict) -> GateReason | None:
    """Return the first condition that does not hold; else the first that compares numbers."""
    broken = [reason for reason in verdict.reasons if not reason.held]
    compared = [reason for reason in verdict.reasons if reason.measured is not None]
    return next(iter([*broken, *compared, *verdict.reasons]), None)


def _headline(decisive: GateReason | None, verdict: Verdict) -> str:
    if decisive is None or decisive.measured is None:
        return verdict.summary
    first = "" if verdict.champion_version else "There is no champion yet. "
    return f"{first}{describe_measurement(decisive.measured, held=decisive.held)}"


def describe_measurement(measured: Measurement, *, held: bool) -> str:
    """Return a measurement beside its threshold, as a sentence."""
    threshold = number(measured.threshold)
    if measured.interval is None:
        needed = "at least" if measured.side == "above" else "at most"
        return f"{number(measured.value)} {measured.quantity}; {needed} {threshold} needed."
    side = measured.side if held else f"not {measured.side}"
    bound = f"{measured.bound} bound of the {measured.quantity}"
    return f"The {bound} is {_signed(measured.decisive)}, {side} the threshold {threshold}."


def _consequence(found: RunFindings, verdict: Verdict) -> str:
    champion, made = verdict.champion_version, found.registration
    if found.word == "Promoted":
        new = f"Version {made.version}" if made is not None and made.version else "The challenger"
        if not champion:
            return f"{new} of {found.model} is champion, the first one."
        undo = f"`perennial rollback {found.model} --reason …` takes it back"
        return f"{new} of {found.model} is champion in place of version {champion}; {undo}."
    if not champion:
        return "Nothing was registered: the model has no champion."
    if made is not None and made.version:
        return (
            f"Version {made.version} was registered, and not promoted: version {champion} of "
            f"{found.model} stays champion."
        )
    return f"Nothing was registered: version {champion} of {found.model} stays champion."


def _figures(decisive: Comparison, reason: GateReason | None) -> tuple[tuple[str, str, str], ...]:
    metric, improvement = decisive.metric, decisive.improvement
    challenger = (f"{metric}, challenger", number(decisive.challenger), "on the test rows")
    if improvement is None or decisive.champion is None:
        return (challenger,)
    gap = abs(decisive.challenger - decisive.champion)
    # The sign that makes positive better: the two differ by the part that is left out.
    raw = min((gap, -gap), key=lambda each: abs(each - improvement.estimate - decisive.luck))
    left_out = (
        f"the raw one without {_signed(decisive.luck)}, which comes from the labels that the test "
        "days happen to have; "
        if decisive.luck
        else "equal to the raw one: nothing is known to be due to the choice of test rows; "
    )
    figures = [
        challenger,
        (f"{metric}, champion", number(decisive.champion), "on the same rows"),
        ("raw difference", _signed(raw), "of these two; positive: the challenger is better"),
        (
            "adjusted difference",
            f"{_signed(improvement.estimate)} [{_signed(improvement.low)}, "
            f"{_signed(improvement.high)}]",
            f"{left_out}the gate decides on it",
        ),
    ]
    measured = reason.measured if reason is not None else None
    if measured is not None and measured.interval == improvement:
        needs = f"the {measured.bound} bound must be {measured.side} it"
        figures.append(("threshold", number(measured.threshold), needs))
    return tuple(figures)


def _draw(measured: Measurement) -> tuple[str, str]:
    """Return the chart of a measurement beside its threshold, and its caption."""
    if measured.interval is None:
        chart = bar_chart(
            {"": measured.value}, x_label=measured.quantity, threshold=measured.threshold
        )
        needed = "at least" if measured.side == "above" else "at most"
        return checked_svg(chart), f"Needed: {needed} {number(measured.threshold)}."
    interval = measured.interval
    chart = interval_chart(
        {"": (interval.low, interval.estimate, interval.high)},
        x_label=measured.quantity,
        reference=0.0 if "improvement" in measured.quantity else None,
        threshold=measured.threshold,
    )
    return checked_svg(chart), (
        f"Dot: estimate. Line: confidence interval. The {measured.bound} bound must be "
        f"{measured.side} the threshold."
    )


def _monitoring_parts(decision: RetrainingDecision, drift: DriftReport | None) -> dict[str, Any]:
    return {
        "headline": decision.summary,
        "bullets": [reason for reason in decision.reasons if UNSET not in reason],
        "chart": _draw_drift(drift) if drift is not None and _judged(drift) else None,
    }


def _study_parts(study: StudyJudgement) -> dict[str, Any]:
    bars = {
        f"trial {each.trial}": (found.low, found.estimate, found.high)
        for each in study.comparisons
        if (found := each.improvement) is not None
    }
    next_action = {
        "adopt": "`perennial study adopt` shows the change as a patch of the contract.",
        "reject": "The contract keeps its values.",
        "inconclusive": "The contract keeps its values; what would settle it is below.",
    }
    chart = interval_chart(
        bars, x_label=f"improvement in {study.metric}", threshold=study.min_improvement
    )
    return {
        "headline": f"{study.summary[:1].upper()}{study.summary[1:]}.",
        "bullets": [
            *(f"{answer.text}." for answer in study.answers[: BULLETS - 1]),
            next_action[study.decision],
        ],
        "chart": (
            checked_svg(chart),
            "Finalists against the baseline, on test rows that no trial was chosen by. Adopt: the "
            "whole interval is above the threshold.",
        )
        if bars
        else None,
    }


def _judged(drift: DriftReport) -> list[WindowDrift]:
    return [window for window in drift.windows if window.threshold > 0]


def _draw_drift(drift: DriftReport) -> tuple[str, str]:
    windows = _judged(drift)
    # Files without a time column have windows in order, and no dates.
    starts = [window.start for window in windows]
    dated = all(start is not None for start in starts)
    places = [
        seconds_at(start) if dated and start is not None else float(place)
        for place, start in enumerate(starts, 1)
    ]
    series: dict[str, Sequence[tuple[float, float]]] = {
        "largest z": [(x, one.max_z_score) for x, one in zip(places, windows, strict=True)],
        "threshold": [(x, one.threshold) for x, one in zip(places, windows, strict=True)],
    }
    label = "start of the window" if dated else "window"
    alarmed = sum(window.alarmed for window in windows)
    found = (
        f"{alarmed} of {len(windows)} windows are above the threshold"
        if alarmed
        else ("No window is above the threshold")
    )
    chart = line_chart(series, x_label=label, y_label="largest drift (z-score)", x_dates=dated)
    return checked_svg(chart), f"{found}."


def _split_error(error: str) -> list[str]:
    """Return an error's problem, evidence and next action; further lines are in the step's part."""
    problem, *rest = error.strip().splitlines() or ["the reason is not recorded"]
    details = [
        line.strip().replace("to do:    ", "To do: ").replace("evidence: ", "Evidence: ")
        for line in rest
        if line.strip().startswith(("evidence: ", "to do: "))
    ]
    return [problem, *details]


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{number(value, 3)}"
