"""Promotion: make a version the champion, in idempotent stages that survive a crash."""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from perennial.clients.tracking import Tracking
from perennial.contracts.gate import Alias, Registration, Verdict
from perennial.contracts.section import canonical_json
from perennial.contracts.version_decisions import (
    GATE,
    VersionDecision,
    refuse_rolled_back,
    tags_of_promotion,
)
from perennial.registry.champion_records import ChampionMovedError
from perennial.registry.model_card import CardContent
from perennial.registry.model_registry import CHALLENGER, CHAMPION, ModelRegistry
from perennial.registry.version_files import ModelVersion, digests_of

Promoted = TypeVar("Promoted")
logger = logging.getLogger(__name__)


def promote_while_better(
    verdict: Verdict, promote: Callable[[Verdict], Promoted], judge: Callable[[], Verdict]
) -> tuple[Verdict, Promoted | None]:
    """Promote if the verdict favours it; judge again whenever the champion changed meanwhile.

    This terminates: each further round needs another writer's promotion.

    Args:
        verdict: The comparison with the champion of a moment ago.
        promote: Promotes in place of the champion that a verdict compared with.
        judge: Compares with the current champion.

    Returns:
        The last verdict, and what `promote` returned; None if that verdict rejects.
    """
    while verdict.promote:
        try:
            return verdict, promote(verdict)
        except ChampionMovedError as error:
            logger.warning("comparing again, because %s", error)
        verdict = judge()
    return verdict, None


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
        registry.finish_change(candidate.name)
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
    decision = VersionDecision.now(GATE, candidate.summary)
    registry.promote(
        candidate.name,
        version.version,
        candidate.champion,
        tags_of_promotion(version.version, candidate.champion, decision),
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


def register_or_keep(
    content: CardContent,
    pack: Callable[[Path, CardContent], Candidate],
    judge: Callable[[], Verdict],
    tracking: Tracking,
    registry: ModelRegistry,
) -> tuple[Registration, CardContent]:
    """Register and promote a challenger; keep the champion if a newer one is not beaten.

    Args:
        content: The card's content, with a verdict that promotes.
        pack: Writes the version's files to a folder.
        judge: Compares with the current champion; ends the tracking run if it rejects.
        tracking: The tracking run, which ends here.
        registry: Receives the version.

    Returns:
        The registration, and the content with the last verdict.
    """

    def pack_and_promote(verdict: Verdict) -> ModelVersion:
        with TemporaryDirectory() as scratch:
            candidate = pack(Path(scratch) / "package", content.judged_again(verdict))
            return promote(candidate, tracking, registry)

    verdict, version = promote_while_better(content.verdict, pack_and_promote, judge)
    aliases: tuple[Alias, ...] = ("champion", "challenger")
    if version is not None:
        tracking.set_tags({"perennial.version": version.version})
        tracking.finish()
    else:
        # An earlier round may have registered it before the champion moved.
        version = registry.take_over(content.name, content.challenger.version_fingerprint())
        aliases = ("challenger",) if version else ()
    registration = Registration(
        name=content.name,
        version=version.version if version else "",
        aliases=aliases,
        weights_sha256=content.challenger.weights_sha256,
        tracking_run_id=version.run_id if version else content.lineage.tracking_run_id,
        replaced_version=verdict.champion_version if CHAMPION in aliases else "",
    )
    return registration, content.judged_again(verdict)
