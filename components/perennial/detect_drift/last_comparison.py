"""Last comparison: reused when snapshot, champion and settings are still the same."""

import hashlib
import logging
from collections.abc import Callable
from datetime import UTC, datetime

from pydantic import JsonValue

from perennial.clients.object_store import ObjectStore
from perennial.contracts.environment import Environment
from perennial.contracts.monitoring import DriftReport
from perennial.contracts.section import Section, canonical_json
from perennial.contracts.triggers import MonitoringConfig
from perennial.contracts.validation import ValidationReport
from perennial.registry.version_files import ModelVersion

logger = logging.getLogger(__name__)


class LastComparison(Section):
    """The newest comparison of a model's data with its champion, `monitoring/<model>/last.json`."""

    schema_version: int = 1
    """Incremented when a field changes its meaning."""
    at: datetime
    """When it was made, UTC."""
    inputs: str
    """Digest of everything that it depends on."""
    found: DriftReport


def inputs_digest(
    settings: MonitoringConfig,
    validated: ValidationReport,
    champion: ModelVersion,
    environment: Environment,
) -> str:
    """Return the digest of all that a comparison depends on: data, champion, settings, code."""
    inputs: list[JsonValue] = [
        settings.to_json(),
        validated.snapshot_digest,
        *(block.to_json() for block in validated.blocks),
        *(champion.version, champion.source),
        *(environment.code_digest, environment.image_digest),
    ]
    return hashlib.sha256(canonical_json(inputs).encode()).hexdigest()


def compare_once(
    store: ObjectStore, model: str, inputs: str, compare: Callable[[], DriftReport]
) -> DriftReport:
    """Return the last comparison if its inputs are the same; else compare, and store the result."""
    key = f"monitoring/{model}/last.json"
    content = store.read(key)
    try:
        last = LastComparison.from_json(content) if content is not None else None
    except ValueError as error:
        logger.warning("%s/%s is not used: %s", store.uri, key, error)
        last = None
    if last is not None and last.inputs == inputs:
        return last.found.model_copy(update={"unchanged_since": last.at})
    found = compare()
    made = LastComparison(at=datetime.now(UTC), inputs=inputs, found=found)
    store.write(key, made.to_json().encode())
    return found
