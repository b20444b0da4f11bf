"""Judgement: score challenger and champion on the same rows, decide, and record the verdict."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from perennial.clients.object_store import open_store
from perennial.clients.tracking import NOTE_TAG, open_tracking
from perennial.contracts.data import Split
from perennial.contracts.environment import Environment
from perennial.contracts.errors import PerennialError
from perennial.contracts.gate import BlockPerformance, Comparison, Repeats, Serving, Verdict
from perennial.contracts.scoring import ScoringSection
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import Challenger, Direction
from perennial.data.dataset import Dataset
from perennial.engine.evaluation.processes import Shards
from perennial.engine.evaluation.resampling import Blocks, block_columns, blocks_of, direction_of
from perennial.engine.evaluation.scoring import Scored
from perennial.engine.metrics.arrays import array_of, parts_of
from perennial.engine.task import Task
from perennial.gate.champion import (
    Champion,
    compare_with_anchor,
    find_anchor,
    read_champion,
)
from perennial.gate.comparison import (
    Conditions,
    Contender,
    Match,
    MeasuredBaselines,
    columns_to_keep,
    compare,
    compare_with_baselines,
    conditions_of,
    find_undefined,
    finite_contender,
    match_beside_baselines,
    measure_metrics,
    searched_columns,
)
from perennial.gate.config import GateSection, JudgementConfig
from perennial.gate.decision import Evidence, RareClass, judge, summarize
from perennial.gate.figures import (
    calibration_error_of,
    calibration_of,
    classification_of,
    figures_of,
    performance_of,
)
from perennial.gate.power import reach_line, reach_of
from perennial.gate.repeats import Days, PastTest, claim_test, days_of
from perennial.gate.report import write_report
from perennial.gate.scoring import score_exported
from perennial.gate.serving import measure_size, serve_in_clean_process, start_clean_interpreter
from perennial.gate.slices import compare_slices, undefined_slices
from perennial.registry.champion_records import CHAMPION
from perennial.registry.initial import find_seen_test_rows
from perennial.registry.model_registry import ModelRegistry, open_registry
from perennial.registry.version_files import ModelVersion
from perennial.reports.verdict_card import gate_word
from perennial.training_jobs.scoring_jobs import open_shards

RARER_BELOW = 0.5


@dataclass(frozen=True)
class JudgedRows:
    """Properties of the test rows beside their scores.

    Attributes:
        conditions: How their labels compare to those of their whole periods; None if unknown.
        days: Runs of adjacent days; empty without a time column.
        repeats: Earlier tests of this champion on these days; None if not counted.
        notes: Limits of these rows, for people.
    """

    blocks: Blocks
    conditions: Conditions | None = None
    searchable: tuple[str, ...] = ()
    rare: RareClass | None = None
    days: Days = ()
    repeats: Repeats | None = None
    notes: tuple[str, ...] = ()


def judged_rows(dataset: Dataset, challenger: Contender, gate: GateSection) -> JudgedRows:
    """Return the properties of the rows that a challenger was scored on."""
    rows, task = challenger.scored.rows, challenger.task
    searchable = searched_columns(dataset.snapshot, gate)
    conditions = conditions_of(dataset, rows, task.kind)
    blocks = blocks_of(rows, dataset.snapshot.data, dataset.snapshot.split)
    rare, days = _rare_class(challenger, blocks), days_of(rows, dataset.snapshot.data.time)
    return JudgedRows(blocks, conditions, searchable, rare, days)


def reach_verdict(
    gate: GateSection,
    challenger: Contender,
    champion: Champion,
    test: JudgedRows,
    *,
    weights_sha256: str,
    baselines: MeasuredBaselines,
    performance: tuple[BlockPerformance, ...],
    serving: Serving | None = None,
) -> Verdict:
    """Measure what the gate asks for, and decide."""
    blocks, repeats = test.blocks, test.repeats
    decisive = 1.0 - repeats.level if repeats is not None and repeats.earlier else None
    draws = blocks.draws(gate.resamples)
    match = Match(
        challenger, champion.contender, blocks, draws, gate.confidence, test.conditions, decisive
    )
    directions, left_out = _directions(gate, match)
    names = tuple(directions)
    comparisons = compare(match, names)
    part = match_beside_baselines(match, baselines.rows)
    beside, figure = dict[str, Comparison](), None
    if part is not None and not find_undefined(replace(part, champion=None), names[:1]):
        figure = measure_metrics(part.challenger, names[:1])[names[0]]
    if part is not None:
        # A champion had to beat the baselines by their bounds; without one, the challenger has to.
        is_first, scores = comparisons[0].champion is None, baselines.scores
        asked = [n for n in gate.must_beat if is_first or names[0] not in scores.get(n, {})]
        metrics = dict.fromkeys([*names, "loss"])
        beside = compare_with_baselines(part, baselines, asked, tuple(metrics))
    evidence = Evidence(
        comparisons=comparisons,
        directions={"loss": "minimize", **directions},
        slices=compare_slices(match, names[0], gate, test.searchable),
        baselines=baselines.scores,
        beside_baselines=beside,
        on_baseline_rows=figure,
        champion_version=champion.version,
        champion_failure=champion.failure,
        same_weights="" != champion.weights_sha256 == weights_sha256,
        test_rows=len(challenger.scored.labels),
        test_blocks=blocks.count,
        unit=blocks.unit,
        serving=serving,
        gains=champion.gains(serving),
        rare=test.rare,
        repeats=repeats,
        anchor=compare_with_anchor(match, champion.anchor, names[0]),
        figures=figures_of(match, names),
        turned_off=challenger.turned_off,
    )
    return _verdict(gate, evidence, match, (*test.notes, *champion.notes, *left_out), performance)


def _verdict(
    gate: GateSection,
    evidence: Evidence,
    match: Match,
    notes: tuple[str, ...],
    performance: tuple[BlockPerformance, ...],
) -> Verdict:
    """Decide on the evidence, and describe both models."""
    reasons, decisive = judge(gate, evidence), evidence.comparisons[0]
    reach = reach_of(gate, decisive, match.blocks)
    if reach is not None and not reach.sufficient:
        notes = (*notes, reach_line(reach, decisive.metric, match.blocks.unit))
    both = {"challenger": match.challenger, "champion": match.champion}
    curves = {name: calibration_of(each) for name, each in both.items() if each is not None}
    return Verdict(
        promote=all(reason.held for reason in reasons),
        summary=summarize(reasons),
        reasons=reasons,
        comparisons=tuple(evidence.comparisons),
        slices=tuple(evidence.slices),
        reach=reach,
        repeats=evidence.repeats,
        anchor=evidence.anchor,
        serving=evidence.serving,
        notes=notes,
        baselines={name: dict(values) for name, values in evidence.baselines.items()},
        champion_version=evidence.champion_version,
        test_rows=evidence.test_rows,
        test_blocks=evidence.test_blocks,
        performance_reference=performance,
        figures=tuple(evidence.figures),
        classification=classification_of(match.challenger),
        calibration=curves["challenger"],
        champion_calibration=curves.get("champion", ()),
        expected_calibration_errors={
            name: calibration_error_of(each)
            for name, each in both.items()
            if each is not None and curves[name]
        },
    )


def _rare_class(challenger: Contender, blocks: Blocks) -> RareClass | None:
    labels = challenger.scored.labels
    if challenger.task.kind != "binary":
        return None
    code = 1.0 if labels.mean() <= RARER_BELOW else 0.0
    sizes = blocks.sizes(array_of(labels[part] == code for part in parts_of(labels)))
    return RareClass(int(sizes.sum()), int(np.count_nonzero(sizes)))


def scalars_of(verdict: Verdict) -> dict[str, float]:
    """Return a verdict's scalars for dashboards."""
    values = {"promote": float(verdict.promote), "test/rows": float(verdict.test_rows)}
    for comparison in verdict.comparisons:
        values[f"test/{comparison.metric}"] = comparison.challenger
        if comparison.champion is not None:
            values[f"test/{comparison.metric}_champion"] = comparison.champion
        if comparison.improvement is not None:
            values[f"test/{comparison.metric}_improvement"] = comparison.improvement.estimate
    if verdict.reach is not None:
        values["test/detectable_improvement"] = verdict.reach.detectable
    if verdict.serving is not None:
        values["serving/megabytes"] = verdict.serving.megabytes
        if verdict.serving.milliseconds is not None:
            values["serving/milliseconds"] = verdict.serving.milliseconds
    return values


def _directions(gate: GateSection, match: Match) -> tuple[dict[str, Direction], tuple[str, ...]]:
    """Return the metrics to compare, the gate's first, and why metrics or slices are left out.

    The gate's own metrics must be defined; the task's other metrics are left out if undefined.
    """
    task = match.challenger.task
    if not task.metrics:
        raise PerennialError(
            "the task has no metrics, so nothing can be compared",
            action="name at least one metric and its direction in the task's `metrics`",
        )
    metric = gate.metric or next(iter(task.metrics))
    asked = (metric, *gate.max_regression, *gate.required)
    missing = find_undefined(match, [name for name in task.metrics if name not in asked])
    names = [name for name in dict.fromkeys([metric, *task.metrics, *asked]) if name not in missing]
    reasons = (*missing.values(), *undefined_slices(match, metric, gate))
    options = {metric: "gate.metric"} | dict.fromkeys(gate.required, "gate.required")
    directions = {
        name: direction_of(task, name, options.get(name, "gate.max_regression")) for name in names
    }
    return directions, reasons


def judge_challenger(
    section: JudgementConfig,
    snapshot: Path,
    challenger: Path,
    skeleton: Path,
    *,
    page: Path,
    environment: Environment,
) -> Verdict:
    """Compare a challenger with the current champion on the snapshot's test rows and decide.

    The verdict's scalars go to the tracking run, which ends here when the challenger is rejected.

    Raises:
        DamagedModelError: the champion's files are not those that were registered.
        PerennialError: a slice, metric or baseline is unknown, or the champion's files are gone, or
            the records of which version is champion contradict each other.
    """
    shards = open_shards(section.scoring, section.resources, section.model, environment)
    dataset = Dataset(Snapshot.read(snapshot))
    task, scored = _score_challenger(section, challenger, dataset, shards)
    record = Challenger.read(challenger)
    contender = finite_contender(task, scored[Split.TEST], record.turned_off)
    weights = record.weights_sha256
    notes = _notes(record, dataset, section.scoring)
    test = replace(judged_rows(dataset, contender, section.gate), notes=notes)
    with TemporaryDirectory() as scratch:
        champion = _champion(
            environment, section, dataset, contender, scratch=Path(scratch), shards=shards
        )
        # Equal weights are refused in any case, so they use up none of the level.
        is_compared = champion.contender is not None and champion.weights_sha256 != weights
        if is_compared and not record.turned_off:  # a model for debugging spends no test
            # Before the comparison: a run that is killed after it has still used these days.
            test = replace(test, repeats=_claimed(environment, section, champion, weights, test))
        verdict = reach_verdict(
            section.gate,
            contender,
            champion,
            test,
            weights_sha256=weights,
            baselines=MeasuredBaselines.read(skeleton),
            performance=performance_of(scored, dataset),
            serving=_measure_serving(section, challenger, contender, dataset, champion),
        )
    models = {"challenger": contender, "champion": champion.contender}
    write_report(
        page,
        verdict=verdict,
        gate=section.gate,
        task=task,
        unit=test.blocks.unit,
        scored={name: model.scored for name, model in models.items() if model is not None},
    )
    _record(environment, section.model.name, verdict, page)
    return verdict


def _score_challenger(
    section: JudgementConfig, challenger: Path, dataset: Dataset, shards: Shards
) -> tuple[Task, dict[Split, Scored]]:
    keep = {
        # Validation rows do not judge: their losses are part of the reference that monitoring uses.
        Split.VALIDATION: block_columns(dataset.snapshot.data),
        Split.TEST: columns_to_keep(dataset.snapshot, section.gate),
    }
    if section.scoring.fits_one_process:
        start_clean_interpreter()  # it imports while rows are scored
    return score_exported(challenger, dataset, keep, section.gate.processes, shards)


def _measure_serving(
    section: JudgementConfig,
    artifact: Path,
    challenger: Contender,
    dataset: Dataset,
    champion: Champion,
) -> Serving:
    """Serve the challenger in a clean process, unless it is too large for one."""
    if not section.scoring.fits_one_process:
        return measure_size(artifact)
    rival = champion.folder if section.gate.times_champion else None
    predictions = challenger.scored.predictions
    return serve_in_clean_process(artifact, challenger.task, dataset, predictions, rival)


def _notes(challenger: Challenger, dataset: Dataset, scoring: ScoringSection) -> tuple[str, ...]:
    """Return what a reader of the verdict should know of the challenger's training."""
    seen = find_seen_test_rows(
        challenger.initial, dataset, challenger.taught_by, challenger.members
    )
    signals = (f"while it trained, {each.finding}" for each in challenger.signals)
    unserved = f"it was not served in a clean process, because scoring.shards = {scoring.shards}"
    return (*seen.lines, *signals, *([] if scoring.fits_one_process else [unserved]))


def _champion(
    environment: Environment,
    section: JudgementConfig,
    dataset: Dataset,
    challenger: Contender,
    *,
    scratch: Path,
    shards: Shards,
) -> Champion:
    registry = open_registry(environment)
    version = registry.version_by_alias(section.model.name, CHAMPION)
    if version is None:
        return Champion()
    folder = registry.download(version, scratch)
    read = partial(
        read_champion,
        dataset=dataset,
        challenger=challenger,
        processes=section.gate.processes,
        shards=shards,
    )
    champion = read(folder, version)
    if by_hand := registry.champion_records(section.model.name).moved_by_hand():
        champion = replace(champion, notes=(by_hand, *champion.notes))
    days = section.gate.anchor_days
    found = find_anchor(registry, version, days) if days and champion.contender else None
    if found is None:
        return champion
    return replace(champion, anchor=_score_anchor(registry, found, read, scratch))


def _score_anchor(
    registry: ModelRegistry,
    anchor: tuple[str, ModelVersion | None],
    read: Callable[[Path, ModelVersion], Champion],
    scratch: Path,
) -> Champion:
    """Score the anchor on the test rows, or record why that is impossible."""
    number, version = anchor
    if version is None:
        return Champion(number, failure="it was deleted")
    try:
        return read(registry.download(version, scratch), version)
    except PerennialError as error:
        # Not raised: `gate.mode` decides whether a challenger may do without the anchor.
        return Champion(number, failure=f"{error.problem}: {error.evidence}")


def _claimed(
    environment: Environment,
    section: JudgementConfig,
    champion: Champion,
    weights: str,
    test: JudgedRows,
) -> Repeats:
    """Record this test; return how often these days tested challengers of this champion."""
    blocks = test.blocks
    record = PastTest(
        champion=champion.version,
        champion_sha256=champion.weights_sha256,
        run_id=environment.run_id,
        challenger_sha256=weights,
        blocks=blocks.count,
        # Each group occurs on many days, so shared days would not tell how many blocks are shared.
        days=test.days if blocks.unit == "day" else (),
    )
    store = open_store(environment.store_uri)
    return claim_test(store, section.model.name, record, 1.0 - section.gate.confidence)


def _record(environment: Environment, name: str, verdict: Verdict, page: Path) -> None:
    tracking = open_tracking(environment, name)
    tracking.log_metrics(scalars_of(verdict))
    tracking.log_text(page.read_text(), "reports/evaluate_model.html")
    tracking.set_tags({"perennial.verdict": verdict.summary, NOTE_TAG: verdict.summary})
    # A challenger is promoted only once it is registered, which may fail.
    if not verdict.promote:
        tracking.set_outcome(gate_word(verdict), verdict.summary)
        tracking.finish()
