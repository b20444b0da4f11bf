"""Compares the newest blocks of a stream with the champion's reference, in features and in loss."""

from pathlib import Path

from components.clients.dataset import Dataset
from components.clients.model_registry import ModelVersion
from components.contracts.monitoring import DriftReport, WindowDrift
from components.contracts.snapshot import Snapshot
from components.contracts.triggers import TriggersSection
from components.contracts.validation import ValidationReport
from components.detect_drift.champion import read_reference, scoring
from components.detect_drift.dependence import dependence_profile
from components.detect_drift.performance import judge_losses, loss_limit, window_losses
from components.detect_drift.reference import measure_windows, unjudged_windows
from components.detect_drift.report import write_report
from components.detect_drift.verdict import conclude
from components.detect_drift.windows import choose_blocks
from components.engine.export import load_model


def compare_with_champion(
    files: Path,
    champion: ModelVersion,
    *,
    current: Snapshot,
    validated: ValidationReport,
    triggers: TriggersSection,
    page: Path,
) -> DriftReport:
    """Judge drift and loss of the blocks after the champion's newest row, and write the page.

    Args:
        files: The champion's.
        champion: Its version.
        current: The newest snapshot.
        validated: Its validation report.
        triggers: What counts as drift and decay.
        page: Where the report goes.
    """
    reference = read_reference(champion, files)
    chosen = choose_blocks(reference, validated.blocks, current)
    limit = loss_limit(reference.performance, triggers)
    measured = None
    windows: tuple[WindowDrift, ...] = unjudged_windows(chosen.windows)
    rows = Dataset(current).scan() if chosen.windows else None
    if rows is not None and not chosen.why_not_judged(triggers):
        blocks = (*chosen.reference, *chosen.windows)
        dependence = dependence_profile(rows, current, blocks, len(chosen.reference))
        more = [dependence] if dependence else []
        measured = measure_windows(chosen.reference, chosen.windows, triggers, more)
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
