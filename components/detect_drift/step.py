"""Reads the champion and the newest snapshot, writes the drift report."""

from pathlib import Path
from tempfile import TemporaryDirectory

from components.clients.dataset import Dataset
from components.clients.environment import Environment
from components.clients.model_registry import CHAMPION, ModelVersion, open_registry
from components.clients.steps import StepResult, pipeline_step
from components.contracts.errors import PerennialError
from components.contracts.monitoring import DriftReport, WindowDrift
from components.contracts.snapshot import Snapshot
from components.contracts.triggers import TriggersSection
from components.contracts.validation import ValidationReport
from components.detect_drift.champion import read_reference, scoring
from components.detect_drift.config import DetectDriftConfig
from components.detect_drift.performance import judge_losses, loss_limit, window_losses
from components.detect_drift.reference import measure_windows
from components.detect_drift.report import write_report
from components.detect_drift.verdict import conclude, summary_of, without_champion
from components.detect_drift.windows import choose_blocks
from components.engine.export import load_model


@pipeline_step("detect_drift", outputs=("drift", "report", "metrics"))
def detect_drift_step(
    *, config: str, snapshot: str, validation: str, drift: str, report: str, metrics: str
) -> StepResult:
    """Compare the newest snapshot with the champion's reference, in features and in loss."""
    settings = DetectDriftConfig.from_json(config)
    current = Snapshot.read(Path(snapshot))
    validated = ValidationReport.read(Path(validation))
    if validated.snapshot_digest != current.digest():
        raise PerennialError(
            "the validation report is about another snapshot",
            evidence=f"{validated.snapshot_digest[:12]}… is not {current.digest()[:12]}…",
            action="wire both inputs to the outputs of one run",
        )
    registry = open_registry(Environment.read())
    champion = registry.version_by_alias(settings.model.name, CHAMPION)
    if champion is None:
        found = without_champion(current)
        write_report(Path(report), found, settings.triggers)
    else:
        with TemporaryDirectory() as scratch:
            files = registry.download(champion, Path(scratch))
            found = _compare(
                files,
                champion,
                current=current,
                validated=validated,
                triggers=settings.triggers,
                page=Path(report),
            )
    found.write(Path(drift))
    return StepResult(metrics=_scalars(found), summary=summary_of(found, settings.triggers))


def _compare(
    files: Path,
    champion: ModelVersion,
    *,
    current: Snapshot,
    validated: ValidationReport,
    triggers: TriggersSection,
    page: Path,
) -> DriftReport:
    reference = read_reference(champion, files)
    chosen = choose_blocks(reference, validated.blocks, current)
    limit = loss_limit(reference.performance, triggers)
    measured = None
    windows: tuple[WindowDrift, ...] = ()
    if chosen.windows:
        measured = measure_windows(chosen.reference, chosen.windows, triggers)
        rows = Dataset(current).scan()
        with scoring(champion):
            losses = window_losses(*load_model(files), rows, current, measured.windows)
        windows = judge_losses(measured.windows, losses, limit, triggers)
    found = conclude(
        champion.version,
        current,
        reference,
        chosen=chosen,
        windows=windows,
        limit=limit,
        triggers=triggers,
    )
    write_report(page, found, triggers, measured=measured, reference=reference, limit=limit)
    return found


def _scalars(found: DriftReport) -> dict[str, float]:
    return {
        "drifted": float(found.drifted),
        "decayed": float(found.decayed),
        "windows": float(len(found.windows)),
        "alarmed_windows": float(sum(window.alarmed for window in found.windows)),
        "largest_z_score": max((window.max_z_score for window in found.windows), default=0.0),
        "new_rows": float(found.new_rows),
    }
