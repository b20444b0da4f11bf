"""Anchor: the last champion that was shown to be better, so that small losses do not add up.

Fourteen challengers, each promoted as not worse by more than 0.005, made a champion 0.06 worse than
the first. So a challenger is compared with the champion that they all descend from as well.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from perennial.contracts.alias_decisions import GATE, REPLACED_TAG, AliasDecision
from perennial.contracts.errors import PerennialError
from perennial.contracts.gate import Verdict
from perennial.registry.model_registry import ModelRegistry, ModelVersion


@dataclass(frozen=True)
class AnchorVersion:
    """Which version is the anchor.

    Attributes:
        number: Of the version.
        registered: None where it was deleted.
    """

    number: str
    registered: ModelVersion | None


def find_anchor(registry: ModelRegistry, champion: ModelVersion, days: int) -> AnchorVersion | None:
    """The anchor, if it is another version than the champion.

    From the champion back through what each version replaced, as long as the gate promoted it
    without showing that it is better. A version that a person promoted begins the record again.

    Args:
        registry: Holds the versions and their verdicts.
        champion: The current one.
        days: Versions that were registered earlier than this are not gone back to.
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
    """Whether nothing before a version is needed to know what it is worth."""
    promoted = AliasDecision.of(version.tags, "promoted")
    if promoted is None or promoted.by != GATE:
        return True
    try:
        files = registry.read_files(version, {Verdict.file_name})
        verdict = Verdict.from_json(files[Verdict.file_name])
    except (PerennialError, KeyError, ValueError):  # of another version: nothing was shown
        return False
    found = verdict.comparisons[0].improvement if verdict.comparisons else None
    return not verdict.champion_version or (found is not None and found.low > 0)
