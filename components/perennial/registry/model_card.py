"""Model card: a Markdown page for people who consider relying on a model version."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from perennial.contracts.data import Split
from perennial.contracts.gate import Comparison, Figure, Interval, Verdict
from perennial.contracts.lineage import Lineage
from perennial.contracts.skeleton import CheckResult, SkeletonReport
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import Challenger, ScoredCandidate, TrainingResult
from perennial.contracts.validation import ValidationReport


def quality(verdict: Verdict) -> list[str]:
    """Return the section: metrics, baselines, slices, calibration and serving, if measured."""
    against = f"version {verdict.champion_version}" if verdict.champion_version else "champion"
    own = {figure.metric: figure for figure in verdict.figures}
    lines = [
        "## Quality",
        "",
        f"On {verdict.test_rows:,} test rows in {verdict.test_blocks:,} independent blocks. Each "
        "bound in brackets holds with the gate's confidence. A positive improvement is better, "
        "whatever the metric's direction.",
        "",
        *table(
            ("metric", "this version", against, "improvement"),
            [_row(comparison, own.get(comparison.metric)) for comparison in verdict.comparisons],
        ),
    ]
    for comparison in verdict.comparisons:
        if comparison.incomparable:
            lines += ["", comparison.incomparable]
    for part in (_baselines(verdict), _slices(verdict), _calibration(verdict), _serving(verdict)):
        lines += ["", *part] if part else []
    return lines


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return [
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    ]


def interval_text(value: float, interval: Interval | None) -> str:
    """Return a metric's value with its bounds, if known."""
    bounds = f" [{interval.low:.5g}, {interval.high:.5g}]" if interval else ""
    return f"{value:.5g}{bounds}"


def _row(comparison: Comparison, own: Figure | None) -> tuple[str, ...]:
    champion = "" if comparison.champion is None else f"{comparison.champion:.5g}"
    improvement = _improvement(comparison.improvement) if comparison.improvement else ""
    opinion = comparison.second_opinion
    if opinion is not None:
        result = "better" if opinion.says_better else "not shown to be better"
        improvement += f"; {opinion.test}: {result}, p = {opinion.p_value:.2g}"
    ours = interval_text(comparison.challenger, own.interval if own else None)
    return (comparison.metric, ours, champion, improvement)


def _improvement(interval: Interval) -> str:
    return f"{interval.estimate:+.3g} [{interval.low:+.3g}, {interval.high:+.3g}]"


def _baselines(verdict: Verdict) -> list[str]:
    if not verdict.baselines:
        return []
    metrics = [comparison.metric for comparison in verdict.comparisons]
    rows = [
        (name, *(f"{values[m]:.5g}" if m in values else "" for m in metrics))
        for name, values in verdict.baselines.items()
    ]
    return [
        "Baselines, on at most `skeleton.baseline_rows` test rows:",
        "",
        *table(("baseline", *metrics), rows),
    ]


def _slices(verdict: Verdict) -> list[str]:
    if not verdict.slices:
        return []
    rows = [
        (
            entry.title,
            f"{entry.rows:,}",
            f"{entry.challenger:.5g}",
            f"{entry.champion:.5g}",
            _improvement(entry.improvement),
            "significantly worse" if entry.regressed else "",
        )
        for entry in verdict.slices
    ]
    header = ("slice", "rows", "this version", "champion", "improvement", "")
    return [f"{verdict.comparisons[0].metric} of subgroups:", "", *table(header, rows)]


def _calibration(verdict: Verdict) -> list[str]:
    if not verdict.calibration:
        return []
    rows = [
        (f"{each.predicted:.3g}", f"{each.observed:.3g}", f"{each.rows:,}")
        for each in verdict.calibration
    ]
    return [
        f"Calibration: the mean error of its probabilities is {verdict.calibration_error:.2g}.",
        "",
        *table(("predicted probability", "observed share", "rows"), rows),
    ]


def _serving(verdict: Verdict) -> list[str]:
    serving = verdict.serving
    if serving is None or serving.milliseconds is None or serving.loading_seconds is None:
        return []
    return [
        f"Served in a clean process: {serving.megabytes:.3g} MB, loaded in "
        f"{serving.loading_seconds:.2g} s, one row in {serving.milliseconds:.3g} ms."
    ]


@dataclass(frozen=True)
class CardContent:
    """The content of a card."""

    name: str
    description: str
    snapshot: Snapshot
    validation: ValidationReport
    skeleton: SkeletonReport
    training: TrainingResult
    challenger: Challenger
    verdict: Verdict
    lineage: Lineage

    def judged_again(self, verdict: Verdict) -> Self:
        """Return a copy with the verdict against another champion."""
        origin = self.lineage.model_copy(update={"parent_version": verdict.champion_version})
        return replace(self, verdict=verdict, lineage=origin)


def model_card(content: CardContent) -> str:
    """Return the card; equal content gives equal text. The most important facts come first."""
    parts = [
        [f"# {content.name}", "", content.description or "*No description in the contract.*"],
        _at_a_glance(content),
        _limits(content),
        _use(content),
        _decision(content.verdict),
        quality(content.verdict),
        _data(content.snapshot),
        _training(content.training, content.challenger),
        _checks(content.validation, content.skeleton),
        _lineage(content.lineage, content.challenger),
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def trigger_name(lineage: Lineage) -> str:
    """Return what started the training: decide_retraining's trigger, or a person's kind."""
    return str(lineage.trigger.get("trigger", "unknown"))


def _at_a_glance(content: CardContent) -> list[str]:
    verdict, snapshot = content.verdict, content.snapshot
    lines = [
        f"- predicts: `{snapshot.data.label}`, from {len(content.challenger.columns.features)}"
    ]
    lines[0] += " columns" if len(content.challenger.columns.features) > 1 else " column"
    if verdict.figures:
        first = verdict.figures[0]
        lines.append(
            f"- {first.metric}: {interval_text(first.value, first.interval)} on "
            f"{verdict.test_rows:,} rows that it was not trained on"
        )
    if snapshot.time_max is not None:
        lines.append(f"- data end: {snapshot.time_max:%Y-%m-%d}")
    lines.append(f"- verdict: {verdict.summary}")
    return ["## At a glance", "", *lines]


def _limits(content: CardContent) -> list[str]:
    verdict, results = content.verdict, content.skeleton.results
    lines = [f"- {note}" for note in verdict.notes]
    lines += [
        f"- {result.check} failed and was waived: {result.waived}"
        for result in results
        if result.outcome == "failed" and result.waived
    ]
    for result in results:
        if result.severity == "off":
            lines.append(f"- {result.check} was not checked: the contract switches it off")
        elif result.severity == "warn" and result.outcome == "warned":
            lines.append(f"- {result.check} failed; the contract sets it to a warning")
    time_max = content.snapshot.time_max
    if time_max is not None:
        lines.append(
            f"- not tested on data after {time_max:%Y-%m-%d}; drift monitoring compares new data "
            "with this version's reference"
        )
    if not verdict.slices:
        lines.append(
            "- quality on subgroups was not compared: no champion, or no column in `gate.slices`"
        )
    if verdict.figures and verdict.figures[0].interval is None:
        lines.append("- the uncertainty of its metrics is unknown: the test rows are one block")
    return ["## Limits", "", *lines]


def _use(content: CardContent) -> list[str]:
    columns = content.challenger.columns
    return [
        "## How to use it",
        "",
        "```python",
        f'mlflow.pyfunc.load_model("models:/{content.name}@champion").predict(rows)',
        "```",
        "",
        "`rows` is a pandas DataFrame with the columns below, raw as in the data. Other columns "
        "are ignored; a missing column, or one of another type, is rejected. The version contains "
        "preprocessing, code and requirements; `MLmodel` contains its signature.",
        "",
        *table(("column", "type"), [(f"`{n}`", kind) for n, kind in columns.features.items()]),
    ]


def _decision(verdict: Verdict) -> list[str]:
    rows = [(r.condition, "yes" if r.held else "no", r.detail) for r in verdict.reasons]
    return [
        "## Why this version",
        "",
        verdict.summary,
        "",
        *table(("the gate's condition", "held", "result"), rows),
    ]


def _data(snapshot: Snapshot) -> list[str]:
    order = (Split.TRAIN, Split.VALIDATION, Split.TEST)
    splits = ", ".join(f"{snapshot.split_rows.get(s, 0):,} {s.value}" for s in order)
    data = snapshot.data
    roles = {"time": (data.time,), "group": (data.group,), "ids": data.ids, "meta": data.meta}
    lines = [
        f"- source: `{data.uri}`, {len(snapshot.files)} files, {snapshot.rows:,} rows",
        f"- splits by {snapshot.split.resolved_method(data)}: {splits} rows",
        f"- label: `{data.label}`",
    ]
    if snapshot.time_min and snapshot.time_max:
        lines.append(f"- period: {snapshot.time_min:%Y-%m-%d} to {snapshot.time_max:%Y-%m-%d}")
    for role, names in roles.items():
        if named := ", ".join(f"`{name}`" for name in names if name):
            lines.append(f"- {role}, which the model never sees: {named}")
    return ["## Data", "", *lines]


def _training(training: TrainingResult, challenger: Challenger) -> list[str]:
    options = ", ".join(f"{key} = {value}" for key, value in challenger.options.items())
    troubles = [
        f"{what}: {count}"
        for count, what in (
            (training.num_resumes, "resumes after an interruption"),
            (training.num_skipped, "updates skipped (not finite)"),
            (training.num_rewinds, "rewinds (the loss jumped)"),
        )
        if count
    ]
    lines = [
        f"- task: `{training.task}`, options: {options or 'defaults'}",
        f"- {training.num_parameters:,} parameters, {training.steps:,} steps, "
        f"{training.world_size} processes ({training.strategy}), {training.seconds:.0f} s",
        *([f"- incidents: {', '.join(troubles)}"] if troubles else []),
        f"- chosen weights: {_chosen(challenger)}",
        f"- reason: {challenger.reason}",
        *(f"- curves: {finding}" for finding in challenger.diagnosis),
    ]
    if challenger.advice != "nothing":
        lines.append(f"- advice for the next training: {challenger.advice}")
    if challenger.next_steps is not None:
        lines.append(f"- proposed length of the next training: {challenger.next_steps:,} steps")
    candidates = [_candidate(each, challenger) for each in challenger.candidates]
    if candidates:
        header = ("candidate", challenger.metric, "standard error", "kept as")
        lines += ["", *table(header, candidates)]
    return ["## Training and selection", "", *lines]


def _chosen(challenger: Challenger) -> str:
    if challenger.chosen_members:
        steps = ", ".join(f"{step:,}" for step in challenger.chosen_members)
        return f"the mean of the weights of steps {steps}"
    averaged = ", their moving average (`training.averaging`)" * challenger.chosen_averaged
    return f"step {challenger.chosen_step:,}{averaged}"


def _candidate(candidate: ScoredCandidate, challenger: Challenger) -> tuple[str, ...]:
    chosen = (challenger.chosen_step, challenger.chosen_averaged, challenger.chosen_members)
    is_chosen = (candidate.step, candidate.averaged, candidate.members) == chosen
    return (
        f"**{candidate.title}**" if is_chosen else candidate.title,
        f"{candidate.metrics[challenger.metric]:.5g}",
        f"{candidate.standard_error:.2g}",
        ", ".join(candidate.kept_as),
    )


def _checks(validation: ValidationReport, skeleton: SkeletonReport) -> list[str]:
    outcomes = [expectation.outcome for expectation in validation.expectations]
    lines = [
        f"- data expectations: {_counted(outcomes)}",
        f"- sanity checks (can this task learn at all?): "
        f"{_counted([_as_shown(result) for result in skeleton.results])}",
    ]
    lines += [
        f"- not met: {expectation.name} of {expectation.subject}: {expectation.observed}"
        for expectation in validation.expectations
        if expectation.outcome == "failed"
    ]
    lines += [
        f"- {result.check} {result.outcome}: measured {result.measured}, expected {result.expected}"
        for result in skeleton.results
        if result.outcome in ("warned", "failed")
    ]
    for reason in ("not applicable", "not measured", "switched off"):
        if names := [result.check for result in skeleton.results if _as_shown(result) == reason]:
            lines.append(f"- {reason}: {', '.join(names)}")
    return ["## Checks", "", *lines]


def _lineage(lineage: Lineage, challenger: Challenger) -> list[str]:
    packages = ", ".join(f"{name} {version}" for name, version in sorted(lineage.packages.items()))
    values = {
        "weights": f"`{challenger.weights_sha256}`",
        "contract": f"`{lineage.contract_digest}`",
        "snapshot": f"`{lineage.snapshot_digest}`",
        "code": f"`{lineage.code_digest}`",
        "commit": f"`{lineage.commit}`" if lineage.commit else "unknown",
        "uncommitted changes": f"`{lineage.diff_digest}`" if lineage.diff_digest else "",
        "image": f"`{lineage.image_digest}`" if lineage.image_digest else "",
        "seed": str(lineage.seed),
        "pipeline run": lineage.run_id,
        "tracking run": lineage.tracking_run_id,
        "trigger": trigger_name(lineage),
        "replaces": f"version {lineage.parent_version}" if lineage.parent_version else "none",
        "python": f"{lineage.python} on {lineage.platform}" if lineage.python else "",
        "packages": packages,
    }
    rows = [(what, value) for what, value in values.items() if value]
    return ["## Lineage", "", *table(("what", "value"), rows)]


def _as_shown(result: CheckResult) -> str:
    """Return an outcome in the words of the console and the pages."""
    if result.outcome != "skipped":
        return result.outcome
    if result.is_unmeasured:
        return "not measured"
    return "switched off" if result.severity == "off" else "not applicable"


def _counted(outcomes: Sequence[str]) -> str:
    names: Iterable[str] = dict.fromkeys(outcomes)
    counts = (f"{outcomes.count(name)} {name.replace('_', ' ')}" for name in names)
    return ", ".join(counts) or "none"
