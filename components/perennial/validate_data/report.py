"""The page that shows a validation: the verdict first, then the facts and their pictures."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from perennial.contracts.data import Split
from perennial.contracts.errors import join_names
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.validation import BlockSketch, Expectation, FactValue, ValidationReport
from perennial.reports.charts import bar_chart, line_chart
from perennial.reports.drawing import seconds_at
from perennial.reports.page import Outcome, Page
from perennial.validate_data.config import ExpectationsSection
from perennial.validate_data.labels import LabelFacts

_MAX_FIGURES = 24
_MAX_SHARES = 4
_MIN_BLOCKS = 2
_TABLE_FACTS = (
    *("rows", "train_rows", "validation_rows", "test_rows", "newest", "future_rows"),
    *("label_kind", "label_values", "rarest_class_share", "duplicate_row_share"),
    *("duplicate_id_share", "overlap_share", "overlap_beyond_chance", "overlap_id_share"),
    *("overlap_group_share", "conflict_share"),
)


def outcome_of(report: ValidationReport) -> Outcome:
    """Return the outcome of the whole validation."""
    if report.failures:
        return "failed"
    bad = [each for each in report.expectations if each.outcome != "passed"]
    return "warned" if any(each.severity == "warning" for each in bad) else "passed"


def summary_of(report: ValidationReport) -> str:
    """The verdict in one sentence."""
    bad = [each for each in report.expectations if each.outcome != "passed"]
    total = len(report.expectations)
    if not bad:
        return f"{report.facts['rows']:,} rows meet all {total} expectations."
    counts = {
        severity: sum(each.severity == severity for each in bad)
        for severity in ("critical", "warning", "info")
    }
    shown = ", ".join(f"{count} {severity}" for severity, count in counts.items() if count)
    first = next(iter(report.failures), bad[0])
    return (
        f"{len(bad)} of {total} expectations not met ({shown}); first {first.subject}: "
        f"{first.expected}, observed {first.observed}."
    )


def validation_page(
    report: ValidationReport, snapshot: Snapshot, section: ExpectationsSection, label: LabelFacts
) -> Page:
    """Return the page of a validation."""
    page = Page("Validate data", outcome=outcome_of(report), summary=summary_of(report))
    _add_verdict(page, report, snapshot, section)
    _add_suite(page, report)
    page.heading("Facts")
    page.values(
        {
            name.replace("_", " "): _shown(report.facts[name])
            for name in _TABLE_FACTS
            if report.facts.get(name) is not None
        }
    )
    _add_label(page, report, snapshot, label)
    _add_leakage(page, report, section)
    _add_splits(page, report)
    _add_columns(page, report, snapshot)
    _add_history(page, report.blocks)
    return page


def remedies(
    expectations: Sequence[Expectation], snapshot: Snapshot, section: ExpectationsSection
) -> Iterator[tuple[str, str]]:
    """Yield each remedy once: the subjects that it is for, and what to do; then lines to paste."""
    subjects: dict[str, list[str]] = {}
    for each in expectations:
        subjects.setdefault(each.hint, []).append(each.subject)
    for hint, found in subjects.items():
        names = list(dict.fromkeys(found))
        columns = [name for name in names if name in snapshot.columns]
        lines = []
        if "expectations.leakage_allow" in hint:
            allowed = [*section.leakage_allow, *names]
            lines.append(f"leakage_allow = {json.dumps(allowed)}  # in [expectations]")
        if "expectations.max_missing_label_share" in hint:
            missing = max(float(each.observed) for each in expectations if each.hint == hint)
            next_percent = (int(missing * 100) + 1) / 100
            lines.append(f"max_missing_label_share = {next_percent}  # in [expectations]")
        if "data.meta" in hint and columns:
            known = [*snapshot.data.meta, *columns]
            lines.insert(0, f"meta = {json.dumps(known)}  # in [data]")
        yield ", ".join(names), "\n".join([hint, *lines])


def _add_verdict(
    page: Page, report: ValidationReport, snapshot: Snapshot, section: ExpectationsSection
) -> None:
    page.heading("Verdict")
    not_met = [each for each in report.expectations if each.outcome != "passed"]
    not_met.sort(key=lambda each: ("critical", "warning", "info").index(each.severity))
    if not_met:
        page.table(
            ["Subject", "Severity", "Expected", "Observed"],
            [[e.subject, e.severity, e.expected, e.observed] for e in not_met],
            caption="Expectations that are not met",
            outcomes=[_colour(each) for each in not_met],
        )
        page.table(["Subject", "What to do"], list(remedies(not_met, snapshot, section)))
    met = [each for each in report.expectations if each.outcome == "passed"]
    lines = (f"{e.subject}: {e.expected}; observed {e.observed} ({e.severity})" for e in met)
    page.details(f"{len(met)} expectations are met", "\n".join(lines))


def _add_suite(page: Page, report: ValidationReport) -> None:
    """Add every expectation of the team's own suite, and which rows it was judged on."""
    own = [each for each in report.expectations if each.basis]
    if own:
        page.heading("Your suite")
        page.table(
            ["Subject", "Expected", "Observed", "Judged on", "Outcome"],
            [[e.subject, e.expected, e.observed, e.basis, e.outcome] for e in own],
            outcomes=["passed" if e.outcome == "passed" else _colour(e) for e in own],
        )


def _add_label(page: Page, report: ValidationReport, snapshot: Snapshot, label: LabelFacts) -> None:
    page.heading("Label")
    if label.classes:
        shown = list(label.classes.items())[:20]
        page.table(
            [snapshot.data.label, *Split],
            [[name, *(f"{splits[split]:,}" for split in Split)] for name, splits in shown],
            caption=f"Rows of the {len(shown)} most frequent of {len(label.classes)} classes",
        )
    means = [
        (x, block.label_mean) for x, block in _along(report.blocks) if block.label_mean is not None
    ]
    if len(means) >= _MIN_BLOCKS:
        data = snapshot.data
        blocks = f"in blocks of {data.block_days} days" if data.time else "file by file"
        page.figure(
            _history_chart({"mean": means}, "mean label", report.blocks),
            f"Mean of {data.label} {blocks}",
        )


def _add_leakage(page: Page, report: ValidationReport, section: ExpectationsSection) -> None:
    aucs = _by_column(report, "leakage_auc")
    if aucs:
        page.heading("How well each feature alone predicts the label")
        top = dict(sorted(aucs.items(), key=lambda item: -item[1])[:_MAX_FIGURES])
        page.figure(
            bar_chart(top, x_label="area under the ROC curve", threshold=section.leakage_auc_warn),
            f"0.5 is chance. {_beyond(top, section.leakage_auc_warn)}",
        )


def _add_splits(page: Page, report: ValidationReport) -> None:
    """Add the features whose validation or test rows differ most from training's."""
    splits = [split for split in Split if split is not Split.TRAIN]
    found = {split: _by_column(report, f"{split.value}_distance") for split in splits}
    names = sorted(
        {name for each in found.values() for name in each},
        key=lambda name: -max(each.get(name, 0.0) for each in found.values()),
    )
    if names:
        page.heading("How far validation and test are from training")
        page.table(
            ["Feature", *splits],
            [
                [
                    name,
                    *(
                        f"{found[split][name]:.3f}" if name in found[split] else ""
                        for split in splits
                    ),
                ]
                for name in names[:_MAX_FIGURES]
            ],
            caption="Largest difference of cumulative shares, or half the sum of differences of "
            "categories' shares; a warning is beyond what blocks of the data differ",
        )


def _beyond(aucs: Mapping[str, float], limit: float) -> str:
    found = [name for name, value in aucs.items() if value > limit]
    if not found:
        return "No feature is beyond the threshold."
    return f"Beyond the threshold, and probably recorded after the label: {join_names(found, 3)}."


def _add_columns(page: Page, report: ValidationReport, snapshot: Snapshot) -> None:
    page.heading("Columns")
    facts = report.facts
    types = dict(snapshot.columns)
    for name in _by_column(report, "missing_share"):
        types.setdefault(name, "derived")  # from a picture, a list or a text
    page.table(
        ["Column", "Type", "Missing", "Smallest", "Largest", "AUC alone"],
        [
            [
                name,
                dtype,
                f"{facts[f'missing_share:{name}']:.2%}",
                *(_shown(facts.get(f"{fact}:{name}")) for fact in ("low", "high", "leakage_auc")),
            ]
            for name, dtype in types.items()
        ],
    )
    missing = {name: share for name, share in _by_column(report, "missing_share").items() if share}
    if missing:
        page.figure(bar_chart(missing, x_label="share of rows"), "Missing values")


def _add_history(page: Page, blocks: tuple[BlockSketch, ...]) -> None:
    """Add the distribution of each feature over time or, without a time column, over files."""
    if len(blocks) < _MIN_BLOCKS:
        return
    page.heading("Features over time" if blocks[0].start else "Features file by file")
    names = [*blocks[0].numeric, *blocks[0].categorical]
    for name in names[:_MAX_FIGURES]:
        numeric = name in blocks[0].numeric
        series = _quantile_series(blocks, name) if numeric else _share_series(blocks, name)
        if any(series.values()):
            label = "10 %, 50 % and 90 % quantile" if numeric else "share of rows"
            page.figure(_history_chart(series, label, blocks), name)
    if len(names) > _MAX_FIGURES:
        page.text(f"{len(names) - _MAX_FIGURES} more features are in validation.json.")


def _history_chart(
    series: dict[str, list[tuple[float, float]]], y_label: str, blocks: tuple[BlockSketch, ...]
) -> str:
    if blocks[0].start:
        return line_chart(series, x_label="time", y_label=y_label, x_dates=True)
    names = blocks[0].files[0].path, blocks[-1].files[0].path
    x_label = f"file, from {names[0]} (1) to {names[1]} ({len(blocks)})"
    return line_chart(series, x_label=x_label, y_label=y_label)


def _along(blocks: tuple[BlockSketch, ...]) -> list[tuple[float, BlockSketch]]:
    """Each block with its place on the x axis: seconds since 1970, or its number."""
    return [
        (seconds_at(block.start) if block.start else float(number), block)
        for number, block in enumerate(blocks, 1)
    ]


def _quantile_series(
    blocks: tuple[BlockSketch, ...], name: str
) -> dict[str, list[tuple[float, float]]]:
    sketches = [(x, block.numeric[name].quantiles) for x, block in _along(blocks)]
    return {
        f"{level:.0%}": [
            (time, quantiles[round(level * (len(quantiles) - 1))])
            for time, quantiles in sketches
            if quantiles
        ]
        for level in (0.1, 0.5, 0.9)
    }


def _share_series(
    blocks: tuple[BlockSketch, ...], name: str
) -> dict[str, list[tuple[float, float]]]:
    totals: Counter[str] = Counter()
    for block in blocks:
        totals.update(block.categorical[name].counts)
    top = [value for value, _ in totals.most_common(_MAX_SHARES)]
    return {
        value: [
            (x, block.categorical[name].counts.get(value, 0) / block.rows)
            for x, block in _along(blocks)
        ]
        for value in top
    }


def _by_column(report: ValidationReport, fact: str) -> dict[str, float]:
    return {
        name.partition(":")[2]: float(value)
        for name, value in report.facts.items()
        if name.startswith(f"{fact}:") and isinstance(value, int | float)
    }


def _colour(expectation: Expectation) -> Outcome:
    colours: dict[str, Outcome] = {"critical": "failed", "warning": "warned", "info": "neutral"}
    return colours[expectation.severity]


def _shown(value: FactValue) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else value
