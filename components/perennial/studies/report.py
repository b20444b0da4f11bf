"""Pages of a study: its trials, and its verdict with what each figure or table rests on."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from perennial.contracts.study import Confirmed, StudyJudgement
from perennial.reports.charts import bar_chart, interval_chart, line_chart
from perennial.reports.page import Outcome, Page
from perennial.reports.verdict_card import OUTCOMES, STUDY_WORDS
from perennial.studies.analysis.coverage import BEST_SHARE, FEWEST_BEST
from perennial.studies.analysis.search import Search, shown_value
from perennial.studies.findings import StudyFindings
from perennial.studies.records import StudyPlan, Trial, summarize_trials

SHOWN_TRIALS = 10


def write_page(
    path: Path,
    plan: StudyPlan,
    trials: Sequence[Trial],
    findings: StudyFindings,
    judgement: StudyJudgement,
    *,
    next_study: str,
) -> None:
    """Write the page; `next_study` is the text of the proposed study file, or empty."""
    search = Search.of(plan, trials)
    badge = STUDY_WORDS[judgement.decision]
    page = Page(
        f"Study: {plan.study.goal}",
        outcome=OUTCOMES.get(badge, "neutral"),
        summary=judgement.summary,
        badge=badge,
    )
    page.values(
        {
            "model": plan.model,
            "study": plan.study_digest[:16],
            "metric": f"{plan.metric}, {plan.direction}d",
            "search trials": ", ".join(f"{n} {state}" for state, n in findings.trials.items()),
            "test rows": judgement.test_rows,
            f"test {judgement.unit}s": judgement.test_blocks,
        }
    )
    _add_answers(page, judgement, findings)
    _add_judgement(page, judgement, findings)
    _add_advice(page, findings, next_study)
    _add_space(page, search, findings)
    _add_effects(page, findings)
    _add_isolation(page, plan, findings)
    _add_noise(page, search, findings)
    _add_curves(page, search, findings)
    page.folded_table(
        f"All {len(search.trials)} trials of the search", *_trials_table(plan, search.trials)
    )
    page.write(path)


def _add_answers(page: Page, judgement: StudyJudgement, findings: StudyFindings) -> None:
    for answer in judgement.answers:
        page.text(answer.text + ".")
    if judgement.answers and findings.boundaries:
        names = ", ".join(each.option for each in findings.boundaries)
        page.text(
            f"The best trials lie at the end of a range ({names}): these answers hold within the "
            "ranges that were searched."
        )


def _add_judgement(page: Page, judgement: StudyJudgement, findings: StudyFindings) -> None:
    page.heading("Finalists against the baseline, on test rows that no trial was chosen by")
    if not judgement.comparisons:
        page.text(judgement.summary)
        return
    page.table(
        ("finalist", "values", "test", "baseline", "in the search", "on test rows", "verdict"),
        [_judgement_row(each) for each in judgement.comparisons],
        caption="Improvements are positive where the finalist is better. The search's is too good "
        "by luck, because the finalist was chosen for it; the one on test rows is not.",
    )
    page.figure(
        interval_chart(
            {f"trial {each.trial}": _bar(each) for each in judgement.comparisons},
            x_label=f"improvement in {judgement.metric} on the baseline",
            threshold=judgement.min_improvement,
        ),
        f"All intervals hold together with {judgement.confidence:.4g} probability; they have the "
        "variance between seeds and that of the choice of the test rows.",
    )
    scientific = {
        f"{answer.option.rpartition('.')[2]}: trial {each.trial} against {each.against}": _bar(each)
        for answer in judgement.answers
        for each in answer.comparisons
    }
    if scientific:
        page.figure(
            interval_chart(scientific, x_label=f"difference in {judgement.metric}"),
            "Scientific questions: the best trial of each value, against one another.",
        )
    page.table(
        ("finalist", "error between seeds", "error of the test rows", "degrees", "confirmations"),
        [
            (
                f"trial {each.trial}",
                each.seed_error,
                each.data_error,
                round(each.degrees, 1),
                "no number settles it"
                if each.confirmations_needed is None and each.decision == "inconclusive"
                else each.confirmations_needed,
            )
            for each in judgement.comparisons
        ],
        caption="Standard errors, and the confirmations of each candidate that would settle it.",
    )
    if findings.noise.optimism is not None:
        page.text(
            f"Search optimism: chosen among {findings.good_points.usable} trials, the best one's "
            f"value is {findings.noise.optimism:.3g} too good on average."
        )
    if judgement.repeats is not None and judgement.repeats.earlier:
        studies = "study" if judgement.repeats.earlier == 1 else "studies"
        page.text(
            f"{judgement.repeats.earlier} earlier {studies} of this baseline used these test rows: "
            f"the level of this one is {judgement.repeats.level:.3g}."
        )


def _judgement_row(each: Confirmed) -> tuple[object, ...]:
    values = ", ".join(
        f"{name.rpartition('.')[2]} {shown_value(value)}" for name, value in each.values.items()
    )
    low_high = "no interval"
    if (found := each.improvement) is not None:
        low_high = f"{found.estimate:.3g} [{found.low:.3g}, {found.high:.3g}]"
    searched = None if each.searched is None else f"{each.searched:+.3g}"
    name = f"trial {each.trial}"
    return name, values, each.test, each.test_against, searched, low_high, each.decision


def _bar(each: Confirmed) -> tuple[float, float, float]:
    found = each.improvement
    if found is None:
        return (float("nan"),) * 3
    return found.low, found.estimate, found.high


def _add_advice(page: Page, findings: StudyFindings, next_study: str) -> None:
    page.heading("What to do next")
    rows: list[tuple[str, str]] = []
    outcomes: list[Outcome] = []
    boundaries = [each.text for each in findings.boundaries]
    checks: list[tuple[str, list[str], str]] = [
        ("ranges", boundaries, "the best trials lie inside of all ranges"),
        (
            "enough good trials",
            [findings.good_points.text] if findings.good_points.more_trials else [],
            findings.good_points.text,
        ),
        (
            "infeasible values",
            [each.text for each in findings.infeasible],
            "no value of one hyperparameter makes trials infeasible",
        ),
        (
            "training length",
            [findings.length.text] if findings.length.advice in {"longer", "shorter"} else [],
            findings.length.text,
        ),
        (
            "variance between seeds",
            [findings.noise.text] if len(findings.noise.tied) > 1 else [],
            findings.noise.text,
        ),
        ("importance", [], findings.effects.text),
    ]
    for question, problems, fine in checks:
        for text in problems or [fine]:
            rows.append((question, text))
            outcomes.append("warned" if problems else "neutral")
    page.table(("question", "answer"), rows, outcomes=outcomes, is_named=False)
    if next_study:
        page.details("The next study, ready to run: next.study.toml", next_study)
    else:
        page.text("No next study is proposed: nothing is left to ask in this space.")


def _add_space(page: Page, search: Search, findings: StudyFindings) -> None:
    """Add where the trials lie in each range: the boundary check, as people see it."""
    page.heading("Search space")
    flagged = {each.option for each in findings.boundaries}
    for option, axis in search.ranges.items():
        places = search.positions(option, search.usable)
        order = [index for index in places.argsort() if np.isfinite(places[index])]
        points = [(float(places[index]), search.sign * search.values[index]) for index in order]
        by_value = sorted(points, key=lambda each: -search.sign * each[1])
        best = sorted(by_value[: max(FEWEST_BEST, round(BEST_SHARE * len(points)))])
        page.figure(
            line_chart(
                {"trials": points, "best fifth": best},
                x_label=f"{option.rpartition('.')[2]}, {axis.bounds[0]:g} to {axis.bounds[1]:g}"
                + (" (logarithmic)" if axis.is_log else ""),
                y_label=search.plan.metric,
                are_joined=False,
            ),
            ("The best trials lie at an end. " if option in flagged else "")
            + f"Value of each trial by its place in the range of {option}.",
        )


def _add_effects(page: Page, findings: StudyFindings) -> None:
    page.heading("Importance")
    page.text(findings.effects.text + ".")
    if not findings.effects.main:
        return
    page.figure(
        bar_chart(
            {each.options[0]: each.share for each in findings.effects.main},
            x_label="share of the trials' differences",
        ),
        "Functional analysis of variance of a quadratic response surface, on ranks.",
    )
    effects = [*findings.effects.main, *findings.effects.pairs[:SHOWN_TRIALS]]
    page.table(
        ("hyperparameter or pair", "share", "from", "to", "p-value", "clear"),
        [
            (
                " and ".join(each.options),
                each.share,
                each.low,
                each.high,
                each.p_value,
                each.is_clear,
            )
            for each in effects
        ],
        caption="Bounds hold with 95% confidence each; p-values are corrected by Holm. A pair's "
        "share is what both together explain beyond the sum of their own effects.",
    )


def _add_isolation(page: Page, plan: StudyPlan, findings: StudyFindings) -> None:
    if not findings.isolation:
        return
    page.heading("Isolation plots: the best over all other hyperparameters")
    for each in findings.isolation:
        page.figure(
            interval_chart(
                {
                    f"{point.value} ({point.trials} trials)": (
                        point.best - (point.spread or 0.0),
                        point.best,
                        point.best + (point.spread or 0.0),
                    )
                    for point in each.points
                },
                x_label=plan.metric,
                reference=None,
            ),
            f"{each.option}. Bands are two standard deviations between seeds.",
        )
    page.table(
        ("hyperparameter", "value", "trials", "best", "best of equally many"),
        [
            (each.option, point.value, point.trials, point.best, point.equal_budget)
            for each in findings.isolation
            for point in each.points
        ],
        caption="The best of more trials is better by luck: the last column compares as many of "
        "each value.",
    )


def _add_noise(page: Page, search: Search, findings: StudyFindings) -> None:
    noise = findings.noise
    if noise.deviation is None:
        return
    page.heading("Variance between seeds")
    spread = 2.0 * noise.deviation / search.plan.study.seeds_per_trial**0.5
    page.figure(
        interval_chart(
            {
                f"trial {trial.number}": (value - spread, value, value + spread)
                for trial in search.ranked[:SHOWN_TRIALS]
                if (value := trial.value) is not None
            },
            x_label=search.plan.metric,
            reference=None,
        ),
        f"The best trials, with two standard deviations between seeds. {noise.text}.",
    )


def _add_curves(page: Page, search: Search, findings: StudyFindings) -> None:
    page.heading("Learning curves of the best trials")
    page.text(findings.length.text + ".")
    metric, direction = search.plan.metric, search.plan.direction
    series = {
        f"trial {trial.number}": [
            (float(point.step), value)
            for point in trial.trainings[0].evaluations
            if (value := point.better_of(metric, direction)) is not None
        ]
        for trial in search.ranked[:3]
        if trial.trainings
    }
    drawn = {name: points for name, points in series.items() if points}
    if drawn:
        page.figure(
            line_chart(drawn, x_label="step", y_label=metric),
            "Evaluations of one seed; with training.averaging, the better of the weights and their "
            "moving average, by which trials are compared.",
        )
    page.table(
        ("trial", "seed", "best step", "last step", "findings"),
        [
            (each.trial, each.seed, each.best_step, each.last_step, "; ".join(each.findings))
            for each in findings.length.curves
        ],
        caption="Diagnosis of each training, as of any training's curves.",
    )


def trials_page(plan: StudyPlan, trials: Sequence[Trial]) -> Page:
    """Return the page with all trials, the best first."""
    page = Page("Run trials", outcome="neutral", summary=summarize_trials(plan, trials))
    page.text(f"Question: {plan.study.goal}")
    page.values(
        {
            "study": plan.study_digest[:16],
            "metric": f"{plan.metric} ({plan.direction})",
            "sampler": plan.study.sampler,
            "device hours": f"{sum(each.device_seconds for each in trials) / 3600:.3g}",
        }
    )
    search = Search.of(plan, trials)
    searched = [*search.ranked, *(trial for trial in search.trials if not trial.is_usable)]
    confirmed = [trial for trial in trials if trial.stage == "confirm"]
    for title, shown in (("Search", searched), ("Confirmations", confirmed)):
        if shown:
            page.heading(title)
            page.table(*_trials_table(plan, shown))
    return page


def _trials_table(
    plan: StudyPlan, trials: Sequence[Trial]
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Return the headings and a row for each trial."""
    options = list(plan.study.dimensions)
    names = (option.rpartition(".")[2] for option in options)
    return (
        ("trial", "stage", plan.metric, "state", *names, "why it did not complete"),
        [
            (
                trial.number if trial.candidate is None else f"{trial.number} of {trial.candidate}",
                f"{trial.stage}, by {trial.source}" if trial.source else trial.stage,
                trial.value,
                trial.state,
                *(shown_value(trial.values.get(option, "")) for option in options),
                trial.reason,
            )
            for trial in trials
        ],
    )
