"""Comparison of the newest blocks of a stream with the champion's reference and loss."""

from pathlib import Path

import polars as pl

from perennial.clients.object_store import ObjectStore
from perennial.contracts.monitoring import DriftReport, Reference, WindowDrift
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.triggers import TriggersSection
from perennial.contracts.validation import ValidationReport
from perennial.data.dataset import Dataset
from perennial.detect_drift.arrivals import record_arrivals
from perennial.detect_drift.champion import read_artifact, scoring
from perennial.detect_drift.dependence import dependence_profile
from perennial.detect_drift.file_windows import choose_files, performance_of
from perennial.detect_drift.performance import judge_losses, loss_limit, window_losses
from perennial.detect_drift.reference import Measured, measure_windows, unjudged_windows
from perennial.detect_drift.report import write_report
from perennial.detect_drift.verdict import conclude
from perennial.detect_drift.windows import Chosen, choose_blocks
from perennial.engine.export import load_model
from perennial.registry.model_registry import ModelVersion


def compare_with_champion(
    files: Path,
    champion: ModelVersion,
    *,
    current: Snapshot,
    validated: ValidationReport,
    triggers: TriggersSection,
    store: ObjectStore,
    page: Path,
) -> DriftReport:
    """Judge drift and loss of the data after the champion's snapshot, and write the page.

    Args:
        files: Folder of the champion's files.
        champion: The champion's version.
        current: The newest snapshot.
        validated: Its validation report.
        triggers: Criteria of drift and decay.
        store: Holds the order of the files' arrival.
        page: The HTML file to write.
    """
    reference = read_artifact(Reference, champion, files)
    by_file = not current.data.time
    if by_file:
        known = read_artifact(Snapshot, champion, files)
        chosen = choose_files(
            reference,
            known,
            validated.blocks,
            current,
            arrivals=record_arrivals(store, champion.name, [known, current]),
            files_in_a_block=triggers.files_in_a_block,
        )
        performance = performance_of(reference.performance, chosen.reference)
        reference = reference.model_copy(update={"performance": performance})
    else:
        chosen = choose_blocks(reference, validated.blocks, current)
    limit = loss_limit(reference.performance, triggers)
    measured = None
    windows: tuple[WindowDrift, ...] = unjudged_windows(chosen.windows)
    rows = Dataset(current).scan(with_file=by_file) if chosen.windows else None
    if rows is not None and not chosen.why_not_judged(triggers):
        measured = _measured(chosen, rows, current, triggers)
        windows = measured.windows
    if rows is not None:
        with scoring(champion):
            losses = window_losses(*load_model(files), rows, current, windows)
        windows = judge_losses(windows, losses, limit, triggers)
    found = conclude(
        champion.version,
        current,
        reference,
        chosen=chosen,
        windows=windows,
        measured=measured,
        limit=limit,
        triggers=triggers,
    )
    write_report(page, found, triggers, measured=measured, reference=reference, limit=limit)
    return found


def _measured(
    chosen: Chosen, rows: pl.LazyFrame, current: Snapshot, triggers: TriggersSection
) -> Measured:
    blocks = (*chosen.reference, *chosen.windows)
    dependence = dependence_profile(rows, current, blocks, len(chosen.reference))
    more = [dependence] if dependence else []
    return measure_windows(chosen.reference, chosen.windows, triggers, more)
