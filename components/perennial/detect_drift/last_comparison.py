"""Last comparison: reused when snapshot, champion and settings are still the same."""

from collections.abc import Callable
from datetime import UTC, datetime

from perennial.clients.object_store import ObjectStore
from perennial.contracts.environment import Environment
from perennial.contracts.monitoring import DriftReport
from perennial.contracts.triggers import MonitoringConfig
from perennial.contracts.validation import ValidationReport
from perennial.registry.version_files import ModelVersion
from perennial.steps.last_result import LastResult, find_last, inputs_digest


class LastComparison(LastResult):
    """The newest comparison of a model's data with its champion, `monitoring/<model>/last.json`."""

    found: DriftReport


def compare_once(
    store: ObjectStore,
    compare: Callable[[], DriftReport],
    *,
    settings: MonitoringConfig,
    validated: ValidationReport,
    champion: ModelVersion,
    environment: Environment,
) -> DriftReport:
    """Return the last comparison if its inputs are the same; else compare, and store the result."""
    options = settings.without_layout()  # how the model is divided changes no result
    blocks = (block.to_json() for block in validated.blocks)
    inputs = inputs_digest(
        [options, validated.snapshot_digest, *blocks, champion.version, champion.source],
        environment,
    )
    key = f"monitoring/{settings.model.name}/last.json"
    last = find_last(store, key, LastComparison, inputs)
    if last is not None:
        return last.found.model_copy(update={"unchanged_since": last.at})
    found = compare()
    made = LastComparison(at=datetime.now(UTC), inputs=inputs, found=found)
    store.write(key, made.to_json().encode())
    return found
