"""Gate: decide whether the challenger becomes champion. All conditions must hold."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from perennial.contracts.gate import (
    AnchorComparison,
    Comparison,
    Figure,
    GateReason,
    Interval,
    Measurement,
    Repeats,
    Serving,
    SliceComparison,
)
from perennial.contracts.training import Direction
from perennial.engine.evaluation.resampling import sign_of
from perennial.gate.config import GateSection

# A ranking compares pairs of one row from each class, so the rarer class limits what it can show.
RANKING = ("roc_auc", "average_precision")


@dataclass(frozen=True)
class RareClass:
    """Counts of the rarer of two classes.

    Attributes:
        blocks: Blocks that contain such a row.
    """

    rows: int
    blocks: int


@dataclass(frozen=True)
class Evidence:
    """Everything that the gate decides on.

    Attributes:
        comparisons: The gate's metric first.
        directions: Metric → whether higher or lower is better.
        baselines: Baseline → its metrics on the test split.
        champion_failure: Why the champion could not be scored; empty if it was, or without one.
        same_weights: Whether the challenger equals the champion bit for bit.
        serving: The challenger in a clean process; None if not measured.
        gains: Property other than metrics → whether the challenger is better.
        rare: The rarer of two classes on the test rows; None if there are not two.
        anchor: Comparison with the anchor; None if the champion is the anchor.
        beside_baselines: Baseline → the comparison with it, if its predictions are stored; with a
            champion only by another metric, where the gate's is undefined for the baseline.
        on_baseline_rows: The challenger's figure of the gate's metric on the rows that baselines
            were measured on, which may be a sample of the test rows; None if they are unknown.
        turned_off: What `training.simplified` turned off in the challenger's training.
    """

    comparisons: Sequence[Comparison]
    directions: Mapping[str, Direction]
    slices: Sequence[SliceComparison]
    baselines: Mapping[str, Mapping[str, float]]
    champion_version: str
    champion_failure: str
    same_weights: bool
    test_rows: int
    test_blocks: int
    unit: str
    serving: Serving | None = None
    gains: Mapping[str, bool] = field(default_factory=dict)
    rare: RareClass | None = None
    repeats: Repeats | None = None
    anchor: AnchorComparison | None = None
    figures: Sequence[Figure] = ()
    beside_baselines: Mapping[str, Comparison] = field(default_factory=dict)
    on_baseline_rows: float | None = None
    turned_off: Sequence[str] = ()


def judge(gate: GateSection, evidence: Evidence) -> tuple[GateReason, ...]:
    """Return every condition that applies, the decisive ones first."""
    reasons = [*_trained_in_full(evidence.turned_off), *_against_champion(gate, evidence)]
    reasons += _guards(gate, evidence)
    reasons += [*_slices(gate, evidence), *_baselines(gate, evidence)]
    reasons += _required(gate, evidence)
    reasons += _serving(gate, evidence.serving)
    reasons += [
        _at_least("enough test rows", evidence.test_rows, gate.min_test_rows, "rows"),
        _at_least(
            "enough independent blocks",
            evidence.test_blocks,
            gate.min_test_blocks,
            f"{evidence.unit}s",
        ),
    ]
    return (*reasons, *_enough_to_compare(gate, evidence))


def summarize(reasons: Sequence[GateReason]) -> str:
    """Return the decision and its main reason as a sentence."""
    broken = [reason for reason in reasons if not reason.held]
    if not broken:
        return f"Promote: {reasons[0].detail}."
    others = f" ({len(broken) - 1} more conditions not met)" if len(broken) > 1 else ""
    return f"Do not promote: {broken[0].detail}{others}."


def _trained_in_full(turned_off: Sequence[str]) -> list[GateReason]:
    """Refuse a model that was trained to look for a bug, however good it is."""
    if not turned_off:
        return []
    detail = (
        f"training.simplified turned off {'; '.join(turned_off)}: such a model is for debugging; "
        "to promote one, set training.simplified = false and leave them out by their own options"
    )
    return [_reason("trained in full", False, detail)]


def _against_champion(gate: GateSection, evidence: Evidence) -> list[GateReason]:
    lenient = gate.mode == "non_inferior"
    condition = "not worse than the champion" if lenient else "better than the champion"
    comparison = evidence.comparisons[0]
    if not evidence.champion_version:
        return [_reason(condition, True, "there is no champion yet")]
    name = f"champion version {evidence.champion_version}"
    if evidence.same_weights:
        return [_reason("differs from the champion", False, f"its weights equal those of {name}")]
    # Asked first: what is not comparable has no champion's value either, but for another reason.
    if comparison.incomparable:
        return [_reason(condition, False, f"against {name}, {comparison.incomparable}")]
    if comparison.champion is None:
        return [_unscored(gate, condition, name, evidence.champion_failure)]
    figures = f"{comparison.metric} {comparison.challenger:.5g} against {comparison.champion:.5g}"
    if comparison.improvement is None:
        detail = f"{figures}, but the noise cannot be estimated from one block"
        return [_reason(condition, False, detail)]
    improvement = comparison.improvement
    span = (
        f"improvement {improvement.estimate:+.2g} [{improvement.low:+.2g}, {improvement.high:+.2g}]"
    )
    least = gate.least_improvement
    # Strictly: an interval that begins at the threshold does not show that the gain exceeds it.
    held = improvement.low > least
    verb = "above" if held else "not above"
    detail = f"{figures} of {name}, {span}, lower bound {verb} {least:g}"
    detail += _repetition(evidence.repeats)
    measured = _improvement(comparison.metric, improvement, least)
    reasons = [_reason(condition, held, detail, measured), *_anchor(gate, evidence.anchor)]
    return [*reasons, *_gains(gate, evidence, name)]


def _repetition(repeats: Repeats | None) -> str:
    if repeats is None or not repeats.earlier:
        return ""
    others = f"{repeats.earlier} challenger{'s were' if repeats.earlier > 1 else ' was'}"
    confidence = f"{1.0 - repeats.level:.2%} confidence"
    return f" at {confidence}, because {others} already tested on these days"


def _anchor(gate: GateSection, anchor: AnchorComparison | None) -> list[GateReason]:
    if anchor is None:
        return []
    # Champions that are each a little worse than the last would add up: only the anchor shows it.
    lenient, name = gate.mode == "non_inferior", f"version {anchor.version}"
    found = anchor.comparison.improvement if anchor.comparison is not None else None
    if found is None:
        why = anchor.failure or "the noise cannot be estimated from one block"
        detail = f"{name}, the last champion that was shown to be better, is not compared: {why}"
        if lenient:
            detail += "; to start without an anchor, promote by hand or set gate.anchor_days = 0"
        # Without an anchor, losses within the margin can add up; `superior` requires a gain anyway.
        return [_reason("not worse than the anchor", not lenient, detail)]
    span = f"improvement {found.estimate:+.2g} [{found.low:+.2g}, {found.high:+.2g}]"
    # `superior` requires a gain over the champion, so here only a significant loss counts.
    held = found.low > -gate.margin if lenient else found.high >= 0
    rule = f"lower bound must exceed {-gate.margin:g}" if lenient else "upper bound must reach 0"
    detail = f"against {name}, the last champion that was shown to be better, {span}: {rule}"
    measured = _improvement(
        f"the gate's metric over {name}",
        found,
        -gate.margin if lenient else 0.0,
        bound="lower" if lenient else "upper",
    )
    return [_reason("not worse than the anchor", held, detail, measured)]


def _enough_to_compare(gate: GateSection, evidence: Evidence) -> list[GateReason]:
    """Return the conditions of a comparison beside the numbers of rows and blocks."""
    decisive = evidence.comparisons[0]
    if decisive.improvement is None or evidence.same_weights:
        return []
    reasons = []
    # Only days follow one another, so that errors can persist; groups and rows are independent.
    if evidence.unit == "day" and decisive.effective_blocks is not None:
        needed = effective_days_needed(gate, evidence.repeats)
        short = _dependence(evidence, decisive, needed)
        worth = f"{evidence.test_blocks:,} days count as {decisive.effective_blocks:.1f}"
        detail = short or f"{worth} independent days, minimum {needed:.3g}"
        detail += _repetition(evidence.repeats)
        measured = Measurement(
            quantity="independent days", value=decisive.effective_blocks, threshold=needed
        )
        reasons.append(_reason("enough independent days", not short, detail, measured))
    rare, judged = evidence.rare, (decisive.metric, *gate.max_regression)
    if rare is not None and any(metric in RANKING for metric in judged):
        unit = f"{evidence.unit}s that hold a row of the rarer class"
        reasons += [
            _at_least(
                "enough rows of the rarer class",
                rare.rows,
                gate.min_rare_rows,
                "test rows of the rarer class",
            ),
            _at_least(f"enough {unit}", rare.blocks, gate.min_rare_blocks, unit),
        ]
    return reasons


def effective_days_needed(gate: GateSection, repeats: Repeats | None = None) -> float:
    """Return the independent days that a test at this level needs.

    The rarer the false promotion, the longer the persistence of days that can cause it. Without
    this, families of 30 equal challengers on few days promoted any in up to 18% at a correlation
    of 0.9, however small the level (benchmarks/results/gate_characteristics.md).
    """
    if repeats is None or not repeats.earlier:
        return gate.min_effective_days
    # log1p(-confidence) is the logarithm of the full level: the first challenger's factor is 1.
    return gate.min_effective_days * math.log(repeats.level) / math.log1p(-gate.confidence)


def _dependence(evidence: Evidence, comparison: Comparison, needed: float) -> str:
    """Say why days are too few or too dependent to judge a metric by; empty if they are not."""
    worth = comparison.effective_blocks
    if evidence.unit != "day" or worth is None or worth >= needed:
        return ""
    return (
        f"{evidence.test_blocks:,} days count as {worth:.1f} independent days, minimum "
        f"{needed:.3g}: the improvement in {comparison.metric} has a correlation of "
        f"{comparison.correlation or 0.0:.2f} from one day to the next; test on more days"
    )


def _unscored(gate: GateSection, condition: str, champion: str, failure: str) -> GateReason:
    """Replace a champion that cannot be scored only if the contract allows it."""
    detail = f"{champion} could not be scored ({failure})"
    if gate.replace_unscored_champion:
        detail += " and is replaced without a comparison: gate.replace_unscored_champion is set"
        return _reason(condition, True, detail)
    return _reason(
        condition,
        False,
        f"{detail}; to replace it without a comparison, set gate.replace_unscored_champion = true "
        "for one run, or promote a version: `perennial promote MODEL N --force --reason …`",
    )


def _gains(gate: GateSection, evidence: Evidence, champion: str) -> list[GateReason]:
    if gate.mode != "non_inferior":
        return []
    gains = {gain: evidence.gains.get(gain, False) for gain in gate.also_better}
    return [
        _reason(
            f"{gain} than the champion", held, f"{gain if held else f'not {gain}'} than {champion}"
        )
        for gain, held in gains.items()
    ]


def _guards(gate: GateSection, evidence: Evidence) -> list[GateReason]:
    compared = {comparison.metric: comparison for comparison in evidence.comparisons}
    reasons = []
    for metric, limit in gate.max_regression.items():
        comparison = compared[metric]
        condition = f"no regression of {metric}"
        if evidence.same_weights:
            continue
        if comparison.incomparable:
            reasons.append(_reason(condition, False, comparison.incomparable))
            continue
        # Without the champion's value, `_against_champion` has decided already.
        if comparison.champion is None:
            continue
        improvement = comparison.improvement
        dependent = _dependence(evidence, comparison, gate.min_effective_days)
        held = improvement is not None and improvement.low >= -limit and not dependent
        shown = "unknown" if improvement is None else f"{improvement.low:+.2g}"
        # Subtracted, as minus 0 would be shown as -0.
        detail = f"lower bound of the change in {metric} is {shown}, limit {0.0 - limit:+g}"
        detail += f"; {dependent}" if dependent else ""
        measured = _improvement(metric, improvement, -limit) if improvement is not None else None
        reasons.append(_reason(condition, held, detail, measured))
    return reasons


def _slices(gate: GateSection, evidence: Evidence) -> list[GateReason]:
    if evidence.comparisons[0].champion is None or evidence.same_weights:
        return []
    reasons = []
    declared = [entry for entry in evidence.slices if not entry.found]
    found = [entry for entry in evidence.slices if entry.found]
    if gate.slices:
        reasons.append(_no_regression("no slice regresses", declared, gate))
    if gate.hidden_slices == "block" and found:
        reasons.append(_no_regression("no hidden slice regresses", found, gate))
    return reasons


def _no_regression(
    condition: str, slices: Sequence[SliceComparison], gate: GateSection
) -> GateReason:
    worse = [entry for entry in slices if entry.regressed]
    if not worse:
        return _reason(condition, True, f"none of {len(slices)} slices is significantly worse")
    named = ", ".join(f"{entry.title} by {-entry.improvement.estimate:.2g}" for entry in worse[:5])
    count = f"{len(worse)} slice{' is' if len(worse) == 1 else 's are'}"
    limit = gate.slice_limit(worse[0].champion, found=worse[0].found)
    measured = _improvement(
        f"the slice {worse[0].title}", worse[0].improvement, -limit, bound="upper"
    )
    return _reason(condition, False, f"{count} significantly worse: {named}", measured)


def _baselines(gate: GateSection, evidence: Evidence) -> list[GateReason]:
    comparison = evidence.comparisons[0]
    reasons = []
    for name in gate.must_beat:
        condition, paired = f"beats the baseline {name}", evidence.beside_baselines.get(name)
        metric, scores = comparison.metric, evidence.baselines.get(name, {})
        on_all, beside = comparison.challenger, evidence.on_baseline_rows
        value = on_all if beside is None or name == "human" else beside
        if metric not in scores and paired is not None:  # as a correlation of a constant
            metric, value = paired.metric, paired.challenger
        score = scores.get(metric)
        if score is None:
            reasons.append(_reason(condition, False, _unmeasured(evidence, name, metric)))
            continue
        sign = sign_of(evidence.directions[metric])
        shown, own = value, "by the estimate: the difference has no bound"
        # The rows behind a human score are unknown, so no difference can be paired.
        if name == "human":
            shown, own = _worst(evidence, metric, value)
        elif comparison.champion is not None:  # the champion had to beat it by the bound
            own = "by the estimate, as there is a champion"
        lead = sign * (shown - score)
        interval = paired.improvement if paired is not None else None
        if interval is not None:
            lead = interval.low
            own = f"lower bound of the difference {lead:+.2g}"
        held = lead > 0
        verb = "beats" if held else "does not significantly beat"
        detail = f"{metric} {value:.5g} {verb} {score:.5g} of {name} ({own})"
        if metric != comparison.metric:
            detail += f", for which {comparison.metric} is undefined"
        measured = Measurement(
            quantity=f"improvement in {metric} over the baseline {name}",
            value=interval.estimate if interval else lead,
            threshold=0.0,
            interval=interval,
        )
        reasons.append(_reason(condition, held, detail, measured))
    return reasons


def _unmeasured(evidence: Evidence, name: str, metric: str) -> str:
    others = ", ".join(evidence.baselines) or "none"
    detail = f"{name} was not measured on {metric}; baselines measured: {others}"
    if name not in evidence.baselines:
        return detail
    return (
        f"{detail}, of which {name} leaves {metric} undefined: set gate.metric to one that it has, "
        "or name other baselines in gate.must_beat"
    )


def _required(gate: GateSection, evidence: Evidence) -> list[GateReason]:
    values = {comparison.metric: comparison.challenger for comparison in evidence.comparisons}
    reasons = []
    for metric, limit in gate.required.items():
        shown, own = _worst(evidence, metric, values[metric])
        held = sign_of(evidence.directions[metric]) * (shown - limit) >= 0
        detail = f"{metric} is {values[metric]:.5g} ({own}), required {limit:g}"
        interval = next((each.interval for each in evidence.figures if each.metric == metric), None)
        upwards = sign_of(evidence.directions[metric]) > 0
        measured = Measurement(
            quantity=metric,
            value=values[metric],
            threshold=limit,
            interval=interval,
            bound="lower" if upwards else "upper",
            side="above" if upwards else "below",
        )
        reasons.append(_reason(f"{metric} is good enough at all", held, detail, measured))
    return reasons


def _worst(evidence: Evidence, metric: str, value: float) -> tuple[float, str]:
    """Return the worse bound of the challenger's own metric, or the metric, and its name."""
    for figure in evidence.figures:
        if figure.metric == metric and figure.interval is not None:
            upwards = sign_of(evidence.directions[metric]) > 0
            bound = figure.interval.low if upwards else figure.interval.high
            return bound, f"{'lower' if upwards else 'upper'} bound {bound:.5g}"
    return value, "no bound"


def _serving(gate: GateSection, serving: Serving | None) -> list[GateReason]:
    if serving is None:
        return []
    condition = "serves in a clean process"
    if serving.failure:
        return [_reason(condition, False, f"the exported model fails to serve: {serving.failure}")]
    reasons = []
    if serving.rows:  # none where the model is too large for one process
        detail = f"its predictions of {serving.rows:,} test rows equal the evaluation's"
        reasons.append(_reason(condition, True, detail))
    sizes = (
        ("small enough", serving.megabytes, gate.max_megabytes, "MB"),
        ("fast enough", serving.milliseconds, gate.max_milliseconds, "ms per row"),
    )
    for named, value, limit, unit in sizes:
        if limit is not None and value is None:
            reasons.append(_reason(named, False, f"{unit} were not measured, limit {limit:g}"))
        elif limit is not None and value is not None:
            detail = f"{value:.3g} {unit}, limit {limit:g}"
            number = Measurement(quantity=unit, value=value, threshold=limit, side="below")
            reasons.append(_reason(named, value <= limit, detail, number))
    return reasons


def _at_least(condition: str, count: int, needed: int, unit: str) -> GateReason:
    measured = Measurement(quantity=unit, value=float(count), threshold=float(needed))
    return _reason(condition, count >= needed, f"{count:,} {unit}, minimum {needed:,}", measured)


def _improvement(
    what: str, interval: Interval, threshold: float, bound: Literal["lower", "upper"] = "lower"
) -> Measurement:
    return Measurement(
        quantity=f"improvement in {what}",
        value=interval.estimate,
        threshold=threshold,
        interval=interval,
        bound=bound,
    )


def _reason(
    condition: str, held: bool, detail: str, measured: Measurement | None = None
) -> GateReason:
    return GateReason(condition=condition, held=held, detail=detail, measured=measured)
