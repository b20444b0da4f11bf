"""Rounds: a champion that moved meanwhile is compared with in turn."""

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
    """How the rounds ended.

    Attributes:
        registration: The version on record, if there is one.
        content: With the last verdict.
    """

    registration: Registration
    content: CardContent

    @property
    def promoted(self) -> bool:
        """Whether the challenger is champion now."""
        return CHAMPION in self.registration.aliases

    def result(self) -> StepResult:
        """The step's."""
        made, verdict = self.registration, self.content.verdict
        if self.promoted:
            version = {"version": float(made.version)}
            return StepResult(
                metrics=version, summary=f"{made.name} version {made.version} is champion"
            )
        moved = f"the champion moved to version {verdict.champion_version} meanwhile"
        return StepResult(summary=f"{moved}: {verdict.summary}")


def register_or_keep(
    content: CardContent,
    pack: Callable[[Path, CardContent], Candidate],
    judge: Callable[[], Verdict],
    tracking: Tracking,
    registry: ModelRegistry,
) -> Ending:
    """Register and promote; while the champion moves, judge again.

    That ends: each round is somebody else's promotion.

    Args:
        content: With a verdict that promotes.
        pack: Writes the version's files to a folder.
        judge: Compares with the champion of now; ends the tracking run when it rejects.
        tracking: The run's record, which ends here.
        registry: Where the version goes.
    """
    while content.verdict.promote:
        with TemporaryDirectory() as scratch:
            candidate = pack(Path(scratch) / "package", content)
            try:
                version = promote(candidate, tracking, registry)
            except ChampionMovedError as error:
                _log.warning("judging again, since %s", error)
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
