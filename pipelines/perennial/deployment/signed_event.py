"""Signed event: a report of another system, accepted once, within a time, with the key.

The body is `{"event": TEXT, "timestamp": SECONDS, "signature": HEX}`, where TEXT is itself JSON and
the signature is HMAC-SHA256 of `SECONDS.TEXT`. The text is signed as a string, not the body: what
receives a body on the way writes it again, with other white space, and a string stays as it is.
"""

import hashlib
import hmac
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, TypeVar

from pydantic import Field, JsonValue, ValidationError, field_validator

from perennial.clients.object_store import ConflictError, ObjectStore
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import Section, canonical_json

S = TypeVar("S", bound=Section)
WINDOW_SECONDS = 300
KEY_BYTES = 32


class RefusedEventError(PerennialError):
    """An event that starts nothing, however often it is tried."""


class Event(Section):
    """Event as the sender wrote it."""

    model: str
    """The model that it is about: an event for another one is refused, though the key be shared."""
    reason: str
    evidence: dict[str, JsonValue] = Field(default_factory=dict)

    @field_validator("evidence")
    @classmethod
    def _is_json(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        canonical_json(value)  # refuses NaN, which Python's senders write
        return value


class SignedEvent(Section):
    """The body of a request."""

    event: str
    timestamp: Annotated[int, Field(ge=0, lt=10**12)]
    signature: str


class Claim(Section):
    """Record of who accepted an event, under the digest of the signed text."""

    claimant: str
    at: str


@dataclass(frozen=True)
class Gate:
    """Checks that events must pass."""

    model: str
    """The model that a run is started of."""
    key: bytes
    """Shared with the sender."""
    store: ObjectStore
    """Remembers which events were accepted; nothing older than the window is needed there."""
    window_seconds: int = WINDOW_SECONDS
    """Largest distance of an event's timestamp from the clock."""

    def accept(self, body: str, claimant: str, now: datetime) -> Event:
        """Return the event of a request's body, if it may start a run.

        The same claimant may come again, as a Job does that found a run under way; anybody else
        repeats an event that was accepted.

        Raises:
            RefusedEventError: the event is not signed with the key, expired, repeated or about
                another model.
        """
        signed = _read(SignedEvent, body, "the body")
        text = _signed_text(signed.timestamp, signed.event)
        expected = hmac.new(self.key, text, hashlib.sha256).hexdigest()
        # In constant time, and as bytes: of texts, compare_digest takes only ASCII ones.
        if not hmac.compare_digest(expected.encode(), signed.signature.encode()):
            raise RefusedEventError(
                "the event's signature does not fit",
                evidence="HMAC-SHA256 of timestamp and event with this key is another one",
                action="sign with the key in Secret perennial-events; `perennial sign` does it",
            )
        event = _read(Event, signed.event, "the event")
        if event.model != self.model:
            raise RefusedEventError(
                f"the event is about the model {event.model!r}",
                evidence=f"this receiver starts runs of {self.model!r}",
                action="send it to the other model's receiver",
            )
        # Last: a refused event stays free for the receiver that it is meant for.
        self._claim(event_id(body), signed.timestamp, claimant, now)
        return event

    def _claim(self, name: str, timestamp: int, claimant: str, now: datetime) -> None:
        key = f"events/{name}.json"
        taken = self.store.read(key)
        if taken is None:
            # Of new events only: the one who claimed an event may retry after the window.
            age = now.timestamp() - timestamp
            if abs(age) > self.window_seconds:
                raise RefusedEventError(
                    "the event is outside of the time window",
                    evidence=f"its timestamp is {age:+.0f} s away from this clock; at most "
                    f"{self.window_seconds} s are allowed",
                    action="send it with a new timestamp and signature; compare the clocks",
                )
            claim = Claim(claimant=claimant, at=now.astimezone(UTC).isoformat())
            try:
                self.store.replace(key, claim.to_json().encode(), previous=None)
            except ConflictError:
                taken = self.store.read(key)
        if taken is not None and _read(Claim, taken.decode(), key).claimant != claimant:
            raise RefusedEventError(
                "the event was accepted before",
                evidence=f"{key} in the object store records by whom and when",
                action="an event starts one run; send another one with a timestamp of its own",
            )


def event_id(body: str) -> str:
    """Return the digest of the signed text: other events have another one, also of equal texts.

    Raises:
        RefusedEventError: the body is not a signed event.
    """
    signed = _read(SignedEvent, body, "the body")
    return hashlib.sha256(_signed_text(signed.timestamp, signed.event)).hexdigest()


def sign(event: Event, key: bytes, now: datetime) -> str:
    """Return the body of a request that starts a run."""
    text, timestamp = event.to_json(), int(now.timestamp())
    signature = hmac.new(key, _signed_text(timestamp, text), hashlib.sha256).hexdigest()
    return SignedEvent(event=text, timestamp=timestamp, signature=signature).to_json()


def checked_key(content: bytes) -> bytes:
    """Return a key from a file, without the end of its line.

    Raises:
        PerennialError: it is so short that it can be guessed.
    """
    key = content.strip()
    if len(key) < KEY_BYTES:
        raise PerennialError(
            f"the signing key has {len(key)} bytes",
            evidence=f"at least {KEY_BYTES} are needed",
            action="make one: `openssl rand -hex 32`",
        )
    return key


def _signed_text(timestamp: int, event: str) -> bytes:
    # JSON may hold half a surrogate pair, which UTF-8 does not encode by itself.
    return f"{timestamp}.{event}".encode("utf-8", "surrogatepass")


def _read(kind: type[S], text: str, what: str) -> S:
    try:
        return kind.from_json(text)
    except (ValidationError, ValueError, RecursionError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"msg": str(error)}
        place = ".".join(map(str, first.get("loc", ())))
        raise RefusedEventError(
            f"{what} is not a signed event",
            evidence=f"{place}: {first['msg']}".lstrip(": "),
            action=f"send {json.dumps({'event': 'TEXT', 'timestamp': 0, 'signature': 'HEX'})}; "
            "`perennial sign` writes it",
        ) from error
