"""Model card: what a person must know before relying on a model version, as Markdown."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from components.contracts.gate import Comparison, Interval, Verdict
from components.contracts.lineage import Lineage
from components.contracts.skeleton import SkeletonReport
from components.contracts.snapshot import Snapshot
from components.contracts.training import Challenger, TrainingResult
from components.contracts.validation import ValidationReport

SEVERITIES: Mapping[str, str] = MappingProxyType(
    {
        "off": "was not checked: the contract switches it off",
        "warn": "failed; the contract makes a warning of it",
    }
)


@dataclass(frozen=True)
class CardContent:
    """Everything that the card is made of."""

    name: str
    description: str
    snapshot: Snapshot
    validation: ValidationReport
    skeleton: SkeletonReport
    training: TrainingResult
    challenger: Challenger
    verdict: Verdict
    lineage: Lineage


def model_card(content: CardContent) -> str:
    """The card; equal content gives equal text."""
    parts = [
        [f"# {content.name}", "", content.description or "*No description in the contract.*"],
        _decision(content.verdict),
        _metrics(content.verdict),
        _data(content.snapshot),
        _training(content.training, content.challenger),
        _checks(content.validation, content.skeleton),
        _limits(content),
        _lineage(content.lineage),
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def trigger_name(lineage: Lineage) -> str:
    """Why the training was started, in a word: decide_retraining's trigger, or a person's kind."""
    return str(lineage.trigger.get("trigger", "unknown"))


def _decision(verdict: Verdict) -> list[str]:
    reasons = [f"- {reason.condition}: {reason.detail}" for reason in verdict.reasons]
    return ["## Why this version", "", verdict.summary, "", *reasons]


def _metrics(verdict: Verdict) -> list[str]:
    against = f"version {verdict.champion_version}" if verdict.champion_version else "champion"
    lines = [
        "## Quality",
        "",
        f"On {verdict.test_rows:,} test rows in {verdict.test_blocks:,} independent blocks.",
        "",
        *_table(("metric", "this version", against, "improvement"), map(_row, verdict.comparisons)),
    ]
    if verdict.baselines:
        metrics = [comparison.metric for comparison in verdict.comparisons]
        rows = [
            (name, *(f"{values[m]:.5g}" if m in values else "" for m in metrics))
            for name, values in verdict.baselines.items()
        ]
        lines += ["", *_table(("baseline", *metrics), rows)]
    if verdict.slices:
        rows = [
            (
                f"{entry.column} = {entry.value}",
                f"{entry.rows:,}",
                f"{entry.challenger:.5g}",
                _interval(entry.improvement),
            )
            for entry in verdict.slices
        ]
        lines += ["", *_table(("slice", "rows", "this version", "improvement"), rows)]
    return lines


def _data(snapshot: Snapshot) -> list[str]:
    splits = ", ".join(f"{rows:,} {split.value}" for split, rows in snapshot.split_rows.items())
    lines = [
        "## Data",
        "",
        f"- source: `{snapshot.data.uri}`, {len(snapshot.files)} files, {snapshot.rows:,} rows",
        f"- splits by {snapshot.split.resolved_method(snapshot.data)}: {splits} rows",
        f"- label: `{snapshot.data.label}`",
        f"- features: {', '.join(f'`{name}`' for name in snapshot.task_columns.features)}",
    ]
    if snapshot.time_min and snapshot.time_max:
        lines.append(f"- period: {snapshot.time_min:%Y-%m-%d} to {snapshot.time_max:%Y-%m-%d}")
    return lines


def _training(training: TrainingResult, challenger: Challenger) -> list[str]:
    options = ", ".join(f"{key} = {value}" for key, value in challenger.options.items())
    return [
        "## Training",
        "",
        f"- task: `{training.task}`, options: {options or 'defaults'}",
        f"- {training.num_parameters:,} parameters, {training.steps:,} steps, "
        f"{training.world_size} processes ({training.strategy}), {training.seconds:.0f} s",
        f"- checkpoint: {challenger.reason}",
        *["- weights: their moving average (`training.averaging`)"] * challenger.chosen_averaged,
        *(f"- curves: {finding}" for finding in challenger.diagnosis),
    ]


def _checks(validation: ValidationReport, skeleton: SkeletonReport) -> list[str]:
    outcomes = [expectation.outcome for expectation in validation.expectations]
    checks = [result.outcome for result in skeleton.results]
    return [
        "## Checks",
        "",
        f"- data expectations: {_counted(outcomes)}",
        f"- skeleton checks: {_counted(checks)}",
        *(
            f"- not met: {expectation.name} of {expectation.subject}: {expectation.observed}"
            for expectation in validation.expectations
            if expectation.outcome == "failed"
        ),
        *(
            f"- {result.check} {result.outcome}: {result.measured}"
            for result in skeleton.results
            if result.outcome == "warned"
        ),
    ]


def _limits(content: CardContent) -> list[str]:
    lines = [f"- {note}" for note in content.verdict.notes]
    lines += [
        f"- {result.check} failed and was waived: {result.waived}"
        for result in content.skeleton.results
        if result.outcome == "failed" and result.waived
    ]
    lines += [
        f"- {result.check} {SEVERITIES[result.severity]}"
        for result in content.skeleton.results
        if result.severity in SEVERITIES
    ]
    time_max = content.snapshot.time_max
    if time_max is not None:
        lines.append(
            f"- nothing is known about data after {time_max:%Y-%m-%d}; drift monitoring compares "
            "new data with this version's reference"
        )
    if not content.verdict.slices:
        lines.append(
            "- quality on subgroups was not compared: `gate.slices` names none with a champion"
        )
    return ["## Limits", "", *lines]


def _lineage(lineage: Lineage) -> list[str]:
    packages = ", ".join(f"{name} {version}" for name, version in sorted(lineage.packages.items()))
    return [
        "## Lineage",
        "",
        *_table(
            ("what", "value"),
            [
                ("contract", f"`{lineage.contract_digest}`"),
                ("snapshot", f"`{lineage.snapshot_digest}`"),
                ("code", f"`{lineage.code_digest}`"),
                ("commit", f"`{lineage.commit}`" if lineage.commit else "unknown"),
                ("seed", str(lineage.seed)),
                ("pipeline run", lineage.run_id),
                ("tracking run", lineage.tracking_run_id),
                ("trigger", trigger_name(lineage)),
                (
                    "replaces",
                    f"version {lineage.parent_version}" if lineage.parent_version else "none",
                ),
                ("packages", packages),
            ],
        ),
    ]


def _row(comparison: Comparison) -> tuple[str, ...]:
    champion = "" if comparison.champion is None else f"{comparison.champion:.5g}"
    improvement = _interval(comparison.improvement) if comparison.improvement else ""
    return (comparison.metric, f"{comparison.challenger:.5g}", champion, improvement)


def _interval(interval: Interval) -> str:
    return f"{interval.estimate:+.3g} [{interval.low:+.3g}, {interval.high:+.3g}]"


def _counted(outcomes: Sequence[str]) -> str:
    counts: Mapping[str, int] = {name: outcomes.count(name) for name in dict.fromkeys(outcomes)}
    return (
        ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items()) or "none"
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    ]
