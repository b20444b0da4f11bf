"""Rounds: compare the challenger again whenever the champion changed meanwhile."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from perennial.clients.tracking import Tracking
from perennial.contracts.gate import Alias, Registration, Verdict
from perennial.registry.model_card import CardContent
from perennial.registry.model_registry import (
    CHAMPION,
    ChampionMovedError,
    ModelRegistry,
    ModelVersion,
)
from perennial.registry.promotion import Candidate, promote
from perennial.steps.decorator import StepResult

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ending:
    """The outcome of the rounds.

    Attributes:
        registration: The registered version; None without one.
        content: The card's content, with the last verdict.
    """

    registration: Registration
    content: CardContent

    @property
    def promoted(self) -> bool:
        """Whether the challenger is the new champion."""
        return CHAMPION in self.registration.aliases

    def result(self) -> StepResult:
        """Return the step's result."""
        made, verdict = self.registration, self.content.verdict
        if self.promoted:
            version = {"version": float(made.version)}
            return StepResult(
                metrics=version, summary=f"{made.name} version {made.version} is champion"
            )
        moved = f"the champion changed to version {verdict.champion_version} meanwhile"
        return StepResult(summary=f"{moved}: {verdict.summary}")


def register_or_keep(
    content: CardContent,
    pack: Callable[[Path, CardContent], Candidate],
    judge: Callable[[], Verdict],
    tracking: Tracking,
    registry: ModelRegistry,
) -> Ending:
    """Register and promote; compare again if the champion changed meanwhile.

    This terminates: each further round needs another writer's promotion.

    Args:
        content: The card's content, with a verdict that promotes.
        pack: Writes the version's files to a folder.
        judge: Compares with the current champion; ends the tracking run if it rejects.
        tracking: The tracking run, which ends here.
        registry: Receives the version.
    """
    while content.verdict.promote:
        with TemporaryDirectory() as scratch:
            candidate = pack(Path(scratch) / "package", content)
            try:
                version = promote(candidate, tracking, registry)
            except ChampionMovedError as error:
                _log.warning("comparing again, because %s", error)
            else:
                tracking.set_tags({"perennial.version": version.version})
                tracking.finish()
                return Ending(_on_record(content, version, ("champion", "challenger")), content)
        content = content.judged_again(judge())
    begun = registry.take_over(candidate.name, candidate.fingerprint)
    return Ending(_on_record(content, begun, ("challenger",) if begun else ()), content)


def _on_record(
    content: CardContent, version: ModelVersion | None, aliases: Sequence[Alias]
) -> Registration:
    return Registration(
        name=content.name,
        version=version.version if version else "",
        aliases=tuple(aliases),
        weights_sha256=content.challenger.weights_sha256,
        tracking_run_id=version.run_id if version else content.lineage.tracking_run_id,
        replaced_version=content.verdict.champion_version if "champion" in aliases else "",
    )
