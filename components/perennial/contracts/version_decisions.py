"""Version decisions: who promoted, restored or rolled back a version, why and when, as its tags."""

import getpass
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from unicodedata import category

from perennial.contracts.errors import PerennialError

GATE = "the gate"
REASON_CHARACTERS = 1000
"""MLflow refuses longer tags in some of its databases."""
DESCRIPTION_CHARACTERS = 5000
"""Length of MLflow's columns for descriptions; PostgreSQL refuses more."""

_EVENTS = ("promoted", "restored", "rolled_back")
_MOMENT = "%Y-%m-%d %H:%M:%S"


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
        return cls(by, reason[:REASON_CHARACTERS], f"{datetime.now(UTC):{_MOMENT}}")

    def after(self, *decided: Mapping[str, str]) -> "VersionDecision":
        """Return the decision at a moment later than each one in tags of versions.

        Clocks differ between machines and are set back: a rollback by one that is behind must
        count against the promotion that it takes back.
        """
        moments = [tags.get(f"perennial.{event}_at", "") for tags in decided for event in _EVENTS]
        latest = max(filter(_is_moment, moments), default="")
        if latest < self.at:
            return self
        with suppress(OverflowError):  # the last second of year 9999
            latest = f"{datetime.strptime(latest, _MOMENT) + timedelta(seconds=1):{_MOMENT}}"
        return replace(self, at=latest)

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


def _is_moment(text: str) -> bool:
    try:
        datetime.strptime(text, _MOMENT)
    except ValueError:
        return False
    return True


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


def this_person() -> str:
    """Return the name of the user of this process; its number where the system has no name."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = ""
    return name if name and not unrecordable(name) else f"user {os.getuid()}"


def unrecordable(texts: Iterable[str]) -> str:
    """Return the first character that no record keeps; empty if there is none.

    Control characters, and halves of characters, as in text that is not UTF-8.
    """
    characters = (each for text in texts for each in text)
    return next(
        (one for one in characters if category(one) in ("Cc", "Cs") and one not in "\n\r\t"), ""
    )


def refuse_unrecordable(what: str, texts: Iterable[str]) -> None:
    """Refuse texts with a character that would damage the record that holds them.

    Raises:
        PerennialError: there is one.
    """
    refused = unrecordable(texts)
    if refused:
        raise PerennialError(
            f"{what} with a character that no database keeps",
            evidence=f"it is {refused!a}",
            action="leave control characters out, and pass the text as UTF-8",
        )
