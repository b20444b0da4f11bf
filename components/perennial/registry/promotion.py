"""Promotion: make a package the champion, in idempotent stages that survive a crash."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perennial.clients.tracking import Tracking
from perennial.contracts.alias_decisions import (
    GATE,
    AliasDecision,
    refuse_rolled_back,
    tags_of_promotion,
)
from perennial.contracts.section import canonical_json
from perennial.registry.model_registry import (
    CHALLENGER,
    CHAMPION,
    ChampionMovedError,
    ModelRegistry,
    ModelVersion,
)
from perennial.registry.version_files import digests_of


@dataclass(frozen=True)
class Candidate:
    """A packaged model on its way to become champion.

    Attributes:
        name: The registered model.
        description: Description of the registered model.
        package: Folder with every file of the version.
        settled: The large ones of these files, whose content the fingerprint determines.
        fingerprint: Identifies the version, so that a retry finds it again.
        version_tags: Tags of the version.
        model_tags: Tags of the registered model.
        summary: Why it was promoted; the version's description.
        champion: The version it was compared with; empty for none.
    """

    name: str
    description: str
    package: Path
    settled: Sequence[str]
    fingerprint: str
    version_tags: Mapping[str, str]
    model_tags: Mapping[str, str]
    summary: str
    champion: str


def promote(candidate: Candidate, tracking: Tracking, registry: ModelRegistry) -> ModelVersion:
    """Upload, register, then move the aliases.

    The version is created only after its files are complete in the store, and the champion moves
    last, so an alias always points to a complete model. A version that an earlier attempt
    registered is reused and its files are not touched.

    Raises:
        ChampionMovedError: the champion is no longer the one that was compared with. If found
            before the upload, nothing is written; if found later, the version stays registered.
        PerennialError: a person rolled this model back, or the records of the champion contradict
            each other; nothing is changed.
    """
    registry.version_by_alias(candidate.name, CHAMPION)  # before a deleted model is created again
    registry.describe_model(candidate.name, candidate.description, candidate.model_tags)
    version = registry.take_over(candidate.name, candidate.fingerprint)
    if version is not None:
        _refuse_rolled_back(version)
    else:
        registry.finish_move(candidate.name)
        found = registry.version_by_alias(candidate.name, CHAMPION)
        champion = found.version if found else ""
        if champion != candidate.champion:
            raise ChampionMovedError.between(candidate.name, candidate.champion, champion)
        # Two models of one run must not share a folder, nor two packages of one model.
        files = digests_of(candidate.package)
        content = hashlib.sha256(canonical_json({**files}).encode())
        path = f"model-{candidate.fingerprint[:12]}-{content.hexdigest()[:12]}"
        tracking.log_artifacts(candidate.package, path, settled=candidate.settled)
        version = registry.register(
            candidate.name,
            source=tracking.artifact_uri(path),
            run_id=tracking.run_id,
            fingerprint=candidate.fingerprint,
            tags=candidate.version_tags,
            description=candidate.summary,
            files=files,
        )
    registry.set_alias(candidate.name, CHALLENGER, version.version)
    said = AliasDecision.now(GATE, candidate.summary)
    registry.promote(
        candidate.name,
        version.version,
        candidate.champion,
        tags_of_promotion(version.version, candidate.champion, said),
    )
    return version


def _refuse_rolled_back(version: ModelVersion) -> None:
    """Refuse a rolled-back version: the same data and seed would pass the gate again."""
    refuse_rolled_back(
        f"the model that was trained is {version.name} version {version.version}, which",
        version.tags,
        f"train on other data or with another contract; `perennial promote {version.name} "
        f"{version.version} --force --reason …` makes it champion again",
    )
