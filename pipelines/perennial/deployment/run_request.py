"""Run request: what to start and why, checked before it is submitted."""

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

from pydantic import JsonValue

from perennial.contracts.errors import PerennialError
from perennial.contracts.section import canonical_json
from perennial.contracts.version_decisions import refuse_unrecordable, this_person
from perennial.deployment.desired import RunKind
from perennial.steps.parameters import CARRIED_BYTES, encode_parameter


@dataclass(frozen=True)
class RunRequest:
    """Request of a person or another system to start a run."""

    kind: RunKind
    reason: str
    """Free text; stored on the run and on the model version."""
    evidence: str = ""
    """Evidence of another system, a JSON object; empty for a person."""
    force: bool = False
    """Also while another run of the model is under way."""
    event: str = ""
    """Id of the event that asks for the run, which is part of the run's name: who asks again gets
    the same run."""
    request: str = field(default_factory=lambda: secrets.token_hex(8))
    """By which a run that is cloned in the dashboard is distinguished from the first one."""

    @property
    def trigger(self) -> str:
        """Return the trigger as a parameter of the pipeline.

        Raises:
            PerennialError: the reason is empty, the evidence is not a JSON object, or both together
                are too long for a step's arguments or hold characters that no database keeps.
        """
        if not self.reason.strip():
            raise PerennialError(
                "the reason is empty",
                evidence=f"got {self.reason!r}",
                action="write why the run is started; it is stored on the run and on the version",
            )
        value: dict[str, JsonValue] = {"trigger": "manual", "by": this_person()}
        if self.evidence:
            try:
                seen = json.loads(self.evidence)
            except (ValueError, RecursionError):
                seen = None
            if not isinstance(seen, dict):
                raise PerennialError(
                    "the evidence is not a JSON object",
                    evidence=f"it begins {self.evidence[:60]!r}",
                    action='pass an object, such as {"new_files": 3}',
                )
            value = {"trigger": "event", "evidence": seen}
        try:
            text = canonical_json({**value, "reason": self.reason, "request": self.request})
        except (ValueError, RecursionError) as error:  # NaN, infinity
            raise PerennialError(
                "the evidence cannot be written as JSON",
                evidence=str(error),
                action="leave out NaN and infinite numbers",
            ) from error
        refuse_unrecordable("reason or evidence", _texts([value, self.reason]))
        size = len(encode_parameter(text))
        if size > CARRIED_BYTES:
            raise PerennialError(
                "reason and evidence are too long to travel with a run",
                evidence=f"as JSON they take {size:,} bytes of at most {CARRIED_BYTES:,}",
                action="shorten them: write where the full evidence is",
            )
        return text


def _texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
