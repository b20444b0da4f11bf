"""The page of `select_checkpoint`: curves, candidates and the reason for the choice."""

from pathlib import Path

from perennial.contracts.training import Advice, ScoredCandidate, TrainingResult
from perennial.engine.evaluation.diagnosis import Diagnosis
from perennial.reports.charts import interval_chart, line_chart
from perennial.reports.page import Outcome, Page
from perennial.select_checkpoint.ensembling import Comparison
from perennial.select_checkpoint.selection import Choice, Selection, alternatives

ADVICE: dict[Advice, str] = {
    "longer": "train longer",
    "shorter": "train shorter",
    "regularise": "regularise more",
    "bug": "look for a bug",
}


def write_report(
    path: Path,
    training: TrainingResult,
    choice: Choice,
    diagnosis: Diagnosis,
    ensemble: Comparison | None,
) -> None:
    """Write the page."""
    selection, metric = choice.selection, choice.metric
    more = f"; {ensemble.reason}" if ensemble else ""
    page = Page("Select checkpoint", outcome="passed", summary=f"Chosen {selection.reason}{more}.")
    page.values(_shipped(selection, metric))
    _add_candidates(page, selection, metric, choice.blocks.unit)
    if ensemble is not None:
        _add_ensemble(page, ensemble, metric)
    _add_alternatives(page, choice)
    page.heading("Diagnosis of the curves")
    values = {"steps": f"{training.steps:,}"}
    if diagnosis.advice != "nothing":
        values["advice"] = ADVICE[diagnosis.advice]
    if diagnosis.next_steps is not None:
        proposed = f"{diagnosis.next_steps:,} steps"
        if diagnosis.next_steps > training.steps:
            proposed += f"; add {training.steps} to training.extended_from to continue this one"
        values["proposed for the next training"] = proposed
    page.values(values)
    for finding in diagnosis.findings:
        page.text(f"{finding[0].upper()}{finding[1:]}.")
    for signal in training.signals:
        page.text(f"While it trained: {signal.finding}.")
    if training.turned_off:
        page.text(f"training.simplified turned off {'; '.join(training.turned_off)}.")
    _draw_curves(page, training, metric, selection.chosen.step)
    page.write(path)


def _add_candidates(page: Page, selection: Selection, metric: str, unit: str) -> None:
    page.heading("Candidates on the full validation split")
    intervals = {each.title: _bar(each, metric) for each in selection.candidates}
    page.figure(
        interval_chart(intervals, x_label=metric, reference=selection.best.metrics[metric]),
        f"Each kept checkpoint, plus and minus one standard error by {unit} of the split.",
    )
    page.table(
        ("checkpoint", "kept as", metric, "difference to the best", "its standard error", "loss"),
        [
            (
                candidate.title,
                ", ".join(candidate.kept_as),
                f"{candidate.metrics[metric]:.5g}",
                f"{gap:.2g}",
                f"{error:.2g}",
                f"{candidate.metrics['loss']:.5g}",
            )
            for candidate, (gap, error) in zip(
                selection.candidates, selection.shortfalls, strict=True
            )
        ],
        caption="Differences are paired: all checkpoints use the same bootstrap draws.",
        outcomes=[
            _outcome(candidate == selection.chosen, broken)
            for candidate, broken in zip(selection.candidates, selection.breaches, strict=True)
        ],
    )
    for candidate, broken in zip(selection.candidates, selection.breaches, strict=True):
        if broken:
            page.text(f"{candidate.title} is not eligible: {' and '.join(broken)}.")


def _add_ensemble(page: Page, found: Comparison, metric: str) -> None:
    page.heading("Ensemble with the last champions")
    page.text(f"{found.reason[0].upper()}{found.reason[1:]}.")
    if found.members:
        versions = ", ".join(each.version for each in found.members)
        titles = "selected checkpoint", f"mean with version {versions}"
        rows = max(cost.rows for cost in found.costs)
        page.table(
            ("candidate", metric, "weights, MB", f"prediction of {rows:,} rows, ms"),
            [
                (title, f"{figure:.5g}", f"{cost.megabytes:,.3g}", f"{cost.milliseconds:,.1f}")
                for title, figure, cost in zip(titles, found.figures, found.costs, strict=True)
            ],
            caption=f"On all validation rows; the difference is {found.gain:.2g}, its standard "
            f"error {found.error:.2g}. Times are of this machine.",
            outcomes=[_outcome(found.is_chosen == bool(n), ()) for n in range(2)],
        )
    for line in found.left_out:
        page.text(f"Left out: {line}.")


def _add_alternatives(page: Page, choice: Choice) -> None:
    metric, chosen = choice.metric, choice.selection.chosen
    others = alternatives(
        choice.evaluations,
        choice.selection.candidates,
        chosen,
        metric=metric,
        direction=choice.direction,
    )
    if not others:
        return
    page.heading("What other selection rules would have chosen")
    page.table(
        (
            "rule",
            "trains until",
            "chooses",
            f"{metric}, sample",
            f"{metric}, all rows",
            "our choice is better by",
        ),
        [
            (
                other.name,
                other.ends,
                f"step {other.step:,}",
                f"{other.sampled:.5g}",
                "not kept" if other.figure is None else f"{other.figure:.5g}",
                "" if other.lead is None else f"{other.lead:.2g}",
            )
            for other in others
        ],
        caption="These rules use only the sample, on which the best of many is too good by "
        "chance. Negative: our choice is worse, within the tolerance.",
    )


def _outcome(is_chosen: bool, broken: tuple[str, ...]) -> Outcome:
    if broken:
        return "failed"
    return "passed" if is_chosen else "neutral"


def _draw_curves(page: Page, training: TrainingResult, metric: str, chosen: int) -> None:
    marks = {"chosen": float(chosen)}
    points = training.evaluations
    loss = {
        "training": [(float(p.step), p.train_loss) for p in points if p.train_loss is not None],
        "validation sample": [(float(point.step), point.metrics["loss"]) for point in points],
    }
    page.figure(line_chart(loss, x_label="step", y_label="loss", marks=marks), "Mean loss.")
    if metric != "loss":
        defined = [(float(p.step), p.metrics[metric]) for p in points if metric in p.metrics]
        curve = {"validation sample": defined}
        page.figure(line_chart(curve, x_label="step", y_label=metric, marks=marks), f"{metric}.")


def _shipped(selection: Selection, metric: str) -> dict[str, str]:
    named = {
        "chosen": selection.chosen,
        f"best {metric}": selection.best,
        "last checkpoint": selection.last,
    }
    return {
        name: f"{candidate.title}: {candidate.metrics[metric]:.5g}"
        for name, candidate in named.items()
    }


def _bar(candidate: ScoredCandidate, metric: str) -> tuple[float, float, float]:
    value, error = candidate.metrics[metric], candidate.standard_error
    return value - error, value, value + error
