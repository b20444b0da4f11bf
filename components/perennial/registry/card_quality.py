"""The card's section on quality: every metric with its uncertainty."""

from collections.abc import Iterable, Sequence

from perennial.contracts.gate import Comparison, Figure, Interval, Verdict


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
