"""Section: the frozen, closed base of everything that is read from TOML or JSON."""

import hashlib
import json
from collections.abc import Callable
from typing import Annotated, Self, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue

T = TypeVar("T")
ADVANCED = "advanced"
Advanced: TypeAlias = Annotated[T, ADVANCED]
"""An option that only experts need: `perennial options` shows it when it is asked for."""


class Section(BaseModel):
    """A value that crosses a process boundary: immutable, no unknown keys, no silent conversion.

    Values travel as JSON strings, because KFP turns the integers inside dictionary parameters
    into floats; reading them back is strict, so `"3"` is never taken for `3`.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    def to_json(self) -> str:
        """The canonical text: sorted keys, no white space; equal values give equal bytes."""
        return canonical_json(self.model_dump(mode="json"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read a value back from `to_json`.

        Raises:
            pydantic.ValidationError: the text is not JSON or does not fit the section.
        """
        return cls.model_validate_json(text)

    def changed(self, *names: str) -> list[str]:
        """Return the fields that differ from their defaults.

        Whether they were written down is not asked: a stored section has them all.
        """
        fields = type(self).model_fields
        defaults = {name: fields[name].get_default(call_default_factory=True) for name in names}
        return [name for name in names if getattr(self, name) != defaults[name]]

    def digest(self) -> str:
        """SHA-256 of the canonical text, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def tag_of(key: str, default: str) -> Callable[[object], str]:
    """Return a discriminator for a union of sections: the tag that a value has.

    Args:
        key: The field.
        default: What a table without it means.
    """

    def tag(value: object) -> str:
        if isinstance(value, dict):
            return str(value.get(key, default))
        return str(getattr(value, key, ""))

    return tag


def canonical_json(value: JsonValue) -> str:
    """JSON with sorted keys and no white space; refuses NaN and infinity, which it cannot hold."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
