"""Anchor: the last champion that was shown to be better, so that small losses do not add up.

Fourteen challengers, each promoted as not worse by more than 0.005, made a champion 0.06 worse than
the first. So a challenger is compared with the champion that they all descend from as well.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from perennial.contracts.errors import PerennialError
from perennial.contracts.gate import Verdict
from perennial.contracts.version_decisions import GATE, REPLACED_TAG, VersionDecision
from perennial.registry.model_registry import ModelRegistry, ModelVersion


@dataclass(frozen=True)
class AnchorVersion:
    """The model version that is the anchor.

    Attributes:
        number: The version's number.
        registered: None if the version was deleted.
    """

    number: str
    registered: ModelVersion | None


def find_anchor(registry: ModelRegistry, champion: ModelVersion, days: int) -> AnchorVersion | None:
    """Return the anchor; None if it is the champion itself.

    Follows the chain of replaced versions back from the champion, as long as the gate promoted each
    without showing that it is better. A version that a person promoted starts a new chain.

    Args:
        registry: Holds the versions and their verdicts.
        champion: The current one.
        days: Versions registered earlier than this are not considered.
    """
    oldest = datetime.now(UTC) - timedelta(days=days)
    known = {version.version: version for version in registry.versions(champion.name)}
    current, seen = champion, {champion.version}
    while not _begins_record(registry, current):
        number = current.tags.get(REPLACED_TAG, "")
        if not number or number in seen:
            break
        before = known.get(number)
        if before is None:
            return AnchorVersion(number, None)
        if before.created_at < oldest:
            break
        seen.add(number)
        current = before
    return None if current is champion else AnchorVersion(current.version, current)


def _begins_record(registry: ModelRegistry, version: ModelVersion) -> bool:
    """Whether the chain of comparisons starts at this version."""
    promoted = VersionDecision.of(version.tags, "promoted")
    if promoted is None or promoted.by != GATE:
        return True
    try:
        files = registry.read_files(version, {Verdict.file_name})
        verdict = Verdict.from_json(files[Verdict.file_name])
    except (PerennialError, KeyError, ValueError):  # of another version: nothing was shown
        return False
    found = verdict.comparisons[0].improvement if verdict.comparisons else None
    return not verdict.champion_version or (found is not None and found.low > 0)
