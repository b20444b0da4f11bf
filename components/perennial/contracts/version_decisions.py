"""Version decisions: who promoted, restored or rolled back a version, why and when, as its tags."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from perennial.contracts.errors import PerennialError

GATE = "the gate"
REASON_CHARACTERS = 1000
"""MLflow refuses longer tags in some of its databases."""
DESCRIPTION_CHARACTERS = 5000
"""Length of MLflow's columns for descriptions; PostgreSQL refuses more."""


@dataclass(frozen=True)
class VersionDecision:
    """A decision of a person or of the gate on a version."""

    by: str
    reason: str
    at: str
    """In UTC, to the second; such times sort as text."""

    @classmethod
    def now(cls, by: str, reason: str) -> "VersionDecision":
        """Return a decision taken now."""
        return cls(by, reason[:REASON_CHARACTERS], f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}")

    def as_tags(self, event: str) -> dict[str, str]:
        """Return its tags; `event` is `promoted`, `restored` or `rolled_back`."""
        return {
            f"perennial.{event}_by": self.by,
            f"perennial.{event}_reason": self.reason,
            f"perennial.{event}_at": self.at,
        }

    @classmethod
    def of(cls, tags: Mapping[str, str], event: str) -> "VersionDecision | None":
        """Return the latest decision of a kind from a version's tags; None if there is none."""
        at = tags.get(f"perennial.{event}_at", "")
        by, reason = (tags.get(f"perennial.{event}_{what}", "") for what in ("by", "reason"))
        return cls(by, reason, at) if at else None


REPLACED_TAG = "perennial.replaced"
"""The version that was champion before this one was promoted; empty for none."""


def tags_of_promotion(
    version: str, replaced: str, decision: VersionDecision
) -> dict[str, dict[str, str]]:
    """Return version → tags of a promotion."""
    return {version: {**decision.as_tags("promoted"), REPLACED_TAG: replaced}}


def tags_of_rollback(
    version: str, restored: str, decision: VersionDecision
) -> dict[str, dict[str, str]]:
    """Return version → tags of a rollback.

    The restored version keeps what it had replaced, so that a second rollback goes further back
    and not forth again.
    """
    return {version: decision.as_tags("rolled_back"), restored: decision.as_tags("restored")}


def is_rolled_back(tags: Mapping[str, str]) -> bool:
    """Whether a person took the version out of production and nobody put it back since."""
    out = VersionDecision.of(tags, "rolled_back")
    back = [
        found.at for event in ("promoted", "restored") if (found := VersionDecision.of(tags, event))
    ]
    return out is not None and all(out.at >= moment for moment in back)


def refuse_rolled_back(title: str, tags: Mapping[str, str], action: str) -> None:
    """Refuse to promote what a person took out of production; the action is what to do instead.

    Raises:
        PerennialError: a person took it out, and nobody put it back since.
    """
    decision = VersionDecision.of(tags, "rolled_back")
    if decision is not None and is_rolled_back(tags):
        raise PerennialError(
            f"{title} was taken out of production",
            evidence=f"rolled back {decision.at} UTC by {decision.by}: {decision.reason}",
            action=action,
        )
