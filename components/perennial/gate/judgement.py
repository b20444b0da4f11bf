"""Judgement: score challenger and champion on the same rows, decide, and record the verdict."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from perennial.clients.object_store import open_store
from perennial.clients.tracking import open_tracking
from perennial.contracts.data import Split
from perennial.contracts.environment import Environment
from perennial.contracts.errors import PerennialError
from perennial.contracts.gate import Repeats, Verdict
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import Challenger
from perennial.data.dataset import Dataset
from perennial.engine.evaluation.resampling import block_columns
from perennial.engine.evaluation.scoring import score_split, scoring_device
from perennial.engine.export import load_model
from perennial.gate.anchor import AnchorVersion, find_anchor
from perennial.gate.baselines import MeasuredBaselines
from perennial.gate.champion import Champion, read_champion
from perennial.gate.comparison import (
    Anchor,
    Contender,
    columns_to_keep,
    finite_contender,
)
from perennial.gate.config import JudgementConfig
from perennial.gate.figures import performance_by_block, performance_by_file
from perennial.gate.repeats import claim_test, record_of
from perennial.gate.report import write_report
from perennial.gate.serving import serve_in_clean_process
from perennial.gate.verdict import JudgedRows, judged_rows, reach_verdict, scalars_of
from perennial.registry.model_registry import CHAMPION, ModelRegistry, open_registry


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

    Args:
        section: The gate's conditions.
        snapshot: Folder of the `Snapshot`.
        challenger: Folder of the `Challenger` and its weights.
        skeleton: Folder of the `SkeletonReport`, whose baselines the challenger must beat.
        page: The HTML file to write.
        environment: Where the services are, and the run that the verdict is recorded under.

    Raises:
        DamagedModelError: the champion's files are not those that were registered.
        PerennialError: a slice, metric or baseline is unknown, or the champion's files are gone, or
            the records of which version is champion contradict each other.
    """
    dataset = Dataset(Snapshot.read(snapshot))
    keep = columns_to_keep(dataset.snapshot, section.gate)
    task, model = load_model(challenger, scoring_device())
    contender = finite_contender(task, score_split(task, model, dataset, Split.TEST, keep=keep))
    test = judged_rows(dataset, contender, section.gate)
    data = dataset.snapshot.data
    validated = score_split(task, model, dataset, Split.VALIDATION, keep=block_columns(data))
    performance = (
        performance_by_block((validated, contender.scored), data)
        if data.time
        else performance_by_file(
            {Split.VALIDATION: validated, Split.TEST: contender.scored}, dataset
        )
    )
    weights = Challenger.read(challenger).weights_sha256
    with TemporaryDirectory() as scratch:
        champion = _champion(environment, section, dataset, contender, Path(scratch))
        if champion.contender is not None and champion.weights_sha256 != weights:
            test = replace(test, repeats=_claimed(environment, section, champion, weights, test))
        decided = reach_verdict(
            section.gate,
            contender,
            champion,
            test,
            weights_sha256=weights,
            baselines=MeasuredBaselines.read(skeleton),
            performance=performance,
            serving=serve_in_clean_process(
                challenger,
                task,
                dataset,
                contender.scored.predictions,
                rival=champion.folder if section.gate.times_champion else None,
            ),
        )
    write_report(page, verdict=decided, gate=section.gate, task=task, unit=test.blocks.unit)
    _record(environment, section.model.name, decided)
    return decided


def _champion(
    environment: Environment,
    section: JudgementConfig,
    dataset: Dataset,
    challenger: Contender,
    scratch: Path,
) -> Champion:
    registry = open_registry(environment)
    version = registry.version_by_alias(section.model.name, CHAMPION)
    if version is None:
        return Champion()
    folder = registry.download(version, scratch)
    champion = read_champion(folder, version, dataset, challenger)
    if by_hand := registry.champion_records(section.model.name).moved_by_hand():
        champion = replace(champion, notes=(by_hand, *champion.notes))
    days = section.gate.anchor_days
    anchor = find_anchor(registry, version, days) if days and champion.contender else None
    if anchor is None:
        return champion
    return replace(champion, anchor=_scored(registry, anchor, dataset, challenger, scratch))


def _scored(
    registry: ModelRegistry,
    anchor: AnchorVersion,
    dataset: Dataset,
    challenger: Contender,
    scratch: Path,
) -> Anchor:
    """Score the anchor on the test rows, or record why that is impossible."""
    if anchor.registered is None:
        return Anchor(anchor.number, failure="it was deleted")
    try:
        folder = registry.download(anchor.registered, scratch)
        found = read_champion(folder, anchor.registered, dataset, challenger)
    except PerennialError as error:
        return Anchor(anchor.number, failure=f"{error.problem}: {error.evidence}")
    return Anchor(anchor.number, found.contender, found.failure)


def _claimed(
    environment: Environment,
    section: JudgementConfig,
    champion: Champion,
    weights: str,
    test: JudgedRows,
) -> Repeats:
    """Record this test; return how often these days tested challengers of this champion."""
    record = record_of(
        (champion.version, champion.weights_sha256), (environment.run_id, weights), test.blocks,
        test.days,
    )  # fmt: skip
    store = open_store(environment.store_uri)
    return claim_test(store, section.model.name, record, 1.0 - section.gate.confidence)


def _record(environment: Environment, name: str, verdict: Verdict) -> None:
    tracking = open_tracking(environment, name)
    tracking.log_metrics(scalars_of(verdict))
    tracking.set_tags({"perennial.verdict": verdict.summary})
    if not verdict.promote:
        tracking.finish()
