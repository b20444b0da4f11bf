"""The step `detect_drift`: compare the newest snapshot with the champion's reference."""

from pathlib import Path
from tempfile import TemporaryDirectory

from perennial.clients.object_store import open_store
from perennial.contracts.artifact import hand_on
from perennial.contracts.environment import Environment
from perennial.contracts.errors import PerennialError
from perennial.contracts.monitoring import DriftReport
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.validation import ValidationReport
from perennial.detect_drift.config import DetectDriftConfig
from perennial.detect_drift.file_windows import record_arrivals
from perennial.detect_drift.last_comparison import compare_once
from perennial.detect_drift.report import scalars_of, summary_of, write_report
from perennial.registry.champion_records import CHAMPION
from perennial.registry.model_registry import open_registry
from perennial.steps.decorator import StepResult, pipeline_step


@pipeline_step("detect_drift", reads=DetectDriftConfig, outputs=("drift", "report"))
def detect_drift_step(
    *, contract: str, snapshot: str, validation: str, drift: str, report: str
) -> StepResult:
    """Compare the newest snapshot with the champion's reference, in features and in loss."""
    settings = DetectDriftConfig.from_json(contract)
    current = Snapshot.read(Path(snapshot))
    validated = ValidationReport.read(Path(validation))
    if validated.snapshot_digest != current.digest():
        raise PerennialError(
            "the validation report belongs to another snapshot",
            evidence=f"{validated.snapshot_digest[:12]}… is not {current.digest()[:12]}…",
            action="connect both inputs to outputs of the same run",
        )
    environment = Environment.read()
    registry, store = open_registry(environment), open_store(environment.store_uri)
    champion = registry.version_by_alias(settings.model.name, CHAMPION)
    if champion is None:
        # Also without a champion: the order in which files arrive cannot be found out later.
        if not current.data.time:
            record_arrivals(store, settings.model.name, [current])
        found = DriftReport(champion_version="", calibration="none", new_rows=current.rows)
        write_report(Path(report), found, settings.triggers)
    else:

        def compare() -> DriftReport:
            # Here, because scoring needs PyTorch, and most looks find nothing new.
            from perennial.detect_drift.comparison import (  # noqa: PLC0415
                compare_with_champion,
            )
            from perennial.training_jobs.scoring_jobs import open_shards  # noqa: PLC0415

            shards = open_shards(settings.scoring, settings.resources, settings.model, environment)

            with TemporaryDirectory() as scratch:
                return compare_with_champion(
                    registry.download(champion, Path(scratch)),
                    champion,
                    current=current,
                    validated=validated,
                    triggers=settings.triggers,
                    store=store,
                    page=Path(report),
                    shards=shards,
                )

        found = compare_once(
            store,
            compare,
            settings=settings,
            validated=validated,
            champion=champion,
            environment=environment,
        )
        if found.unchanged_since is not None:
            write_report(Path(report), found, settings.triggers)
    hand_on(Path(drift), found, Path(validation), Path(snapshot))
    return StepResult(metrics=scalars_of(found), summary=summary_of(found, settings.triggers))
