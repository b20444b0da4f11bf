"""Model card: a Markdown page for people who consider relying on a model version."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from perennial.contracts.gate import Interval, ReferenceTest, Verdict
from perennial.contracts.lineage import Lineage
from perennial.contracts.skeleton import SkeletonReport
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import Challenger, TrainingResult, describe_parts
from perennial.contracts.validation import ValidationReport
from perennial.reports.page import render

CARD_FILE = "model_card.md"


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


def default_description(content: CardContent) -> str:
    """Return what MLflow shows of a model that nobody described: task, label, data, loading."""
    snapshot = content.snapshot
    return (
        f"{content.challenger.task} predicts `{snapshot.task_columns.label}` of "
        f"{snapshot.data.uri}. `mlflow.artifacts.download_artifacts("
        f'"models:/{content.name}@champion")` fetches the champion; '
        f"`perennial.engine.export.load_model(Path(FOLDER))` loads it. Its {CARD_FILE} has the "
        "results."
    )


def model_card(content: CardContent) -> str:
    """Return the card; equal content gives equal text."""
    verdict, results = content.verdict, content.skeleton.results
    metrics = [comparison.metric for comparison in verdict.comparisons]
    outcomes = [result.shown_outcome for result in results]
    skipped = {
        reason: [
            result.check for result, shown in zip(results, outcomes, strict=True) if shown == reason
        ]
        for reason in ("not applicable", "not measured", "switched off")
    }
    incidents = {
        "resumes after an interruption": content.training.num_resumes,
        "updates skipped (not finite)": content.training.num_skipped,
        "rewinds (the loss jumped)": content.training.num_rewinds,
    }
    return render(
        "model_card.md",
        **vars(content),
        metrics=metrics,
        own=dict.fromkeys(metrics) | {each.metric: each.interval for each in verdict.figures},
        baselines={
            name: [f"{values[metric]:.5g}" if metric in values else "" for metric in metrics]
            for name, values in verdict.baselines.items()
        },
        outcomes=outcomes,
        skipped={reason: checks for reason, checks in skipped.items() if checks},
        incidents=[f"{what}: {count}" for what, count in incidents.items() if count],
        origin=_origin(content.lineage, content.challenger),
        row=_row,
        counted=_counted,
        figure=_figure,
        improvement=_improvement,
        textbook_test=_textbook_test,
    )


def trigger_name(lineage: Lineage) -> str:
    """Return what started the training: decide_retraining's trigger, or a person's kind."""
    return str(lineage.trigger.get("trigger", "unknown"))


def _row(*cells: object) -> str:
    """Return one line of a Markdown table."""
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def _figure(value: float, interval: Interval | None) -> str:
    bounds = f" [{interval.low:.5g}, {interval.high:.5g}]" if interval else ""
    return f"{value:.5g}{bounds}"


def _improvement(interval: Interval | None) -> str:
    if interval is None:
        return ""
    return f"{interval.estimate:+.3g} [{interval.low:+.3g}, {interval.high:+.3g}]"


def _textbook_test(found: ReferenceTest | None) -> str:
    if found is None:
        return ""
    result = "better" if found.is_better else "not shown to be better"
    return f"; {found.test}: {result}, p = {found.p_value:.2g}"


def _study(lineage: Lineage) -> str:
    """Return the study that values of the contract were adopted from; empty without one."""
    found = lineage.study
    if not found:
        return ""
    digest = str(found.get("study_digest", ""))[:16]
    return (
        f"`{digest}`, trial {found.get('trial')}, {found.get('decision')}: {found.get('evidence')}"
    )


def _origin(lineage: Lineage, challenger: Challenger) -> dict[str, str]:
    packages = ", ".join(f"{name} {version}" for name, version in sorted(lineage.packages.items()))
    return {
        "weights": f"`{challenger.weights_sha256}`",
        "contract": f"`{lineage.contract_digest}`",
        "snapshot": f"`{lineage.snapshot_digest}`",
        "code": f"`{lineage.code_digest}`",
        "commit": f"`{lineage.commit}`" if lineage.commit else "unknown",
        "uncommitted changes": f"`{lineage.diff_digest}`" if lineage.diff_digest else "",
        "image": f"`{lineage.image_digest}`" if lineage.image_digest else "",
        "initial weights": lineage.initial.describe() if lineage.initial else "",
        "adapter": lineage.adapter.describe() if lineage.adapter else "",
        "teachers": "; ".join(each.describe() for each in lineage.teachers),
        "ensemble of": _members(lineage),
        "seed": str(lineage.seed),
        "trained by": describe_parts(lineage.parts),
        "pipeline run": lineage.run_id,
        "tracking run": lineage.tracking_run_id,
        "trigger": trigger_name(lineage),
        "study": _study(lineage),
        "replaces": f"version {lineage.parent_version}" if lineage.parent_version else "none",
        "python": f"{lineage.python} on {lineage.platform}" if lineage.python else "",
        "packages": packages,
    }


def _members(lineage: Lineage) -> str:
    """Return the parts of an ensemble; empty for a single model."""
    parts = ["this training", *(each.describe() for each in lineage.members)]
    return "; ".join(parts) if lineage.members else ""


def _counted(outcomes: Sequence[str]) -> str:
    counts = Counter(outcomes).items()
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts) or "none"
