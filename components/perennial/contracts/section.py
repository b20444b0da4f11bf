"""Section: the frozen, closed base of everything that is read from TOML or JSON."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Self, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    JsonValue,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from perennial.contracts.errors import PerennialError

T = TypeVar("T")
ADVANCED = "advanced"
Advanced: TypeAlias = Annotated[T, ADVANCED]
"""An option that only experts need: `perennial options` shows it when it is asked for."""
LAYOUT = "layout"
Layout: TypeAlias = Annotated[T, LAYOUT]
"""An option of how the work is divided, stored or watched, which changes the result by rounding,
dropout masks and local batch statistics at most: it is not part of a training's identity."""
REMOVED_OPTIONS: Mapping[str, JsonValue] = MappingProxyType(
    {
        "anneal": "cosine",
        "decay_shape": "sqrt",
        "highest_momentum": 0.95,
        "initial_fraction": 0.04,
        "initial_loss_tolerance": 0.2,
        "lowest_momentum": 0.85,
        "max_blank_share": 0.01,
        "max_unreadable_share": 0.0,
        "momentum_decay": 4e-3,
        "overfit_tolerance": 0.05,
        "relative_step": False,
        "second_moment_decay": -0.8,
        "spread_over": "kubernetes.io/hostname",
        "update_threshold": 1.0,
    }
)
"""Options that a contract could set once, with the value that holds now."""
CONTRACT_SECTIONS = frozenset(
    {
        "model",
        "data",
        "split",
        "expectations",
        "skeleton",
        "training",
        "resources",
        "selection",
        "scoring",
        "gate",
        "registry",
        "triggers",
        "study",
    }
)
"""Names of a contract's sections."""


class Section(BaseModel):
    """A value that crosses a process boundary: immutable, no unknown keys, no silent conversion.

    Values travel as JSON strings, because KFP turns the integers inside dictionary parameters
    into floats; reading them back is strict, so `"3"` is never taken for `3`.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    def to_json(self) -> str:
        """Return the canonical text: sorted keys, no white space; equal values give equal bytes."""
        return canonical_json(self.model_dump(mode="json"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read a value back from `to_json`; an earlier version may have written it.

        Raises:
            pydantic.ValidationError: the text is not JSON or does not fit the section.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            current = _without_removed_options(text, error)
            if current is None:
                raise
        return cls.model_validate_json(current)

    def changed(self, *names: str) -> list[str]:
        """Return the fields that differ from their defaults.

        Whether they were written down is not asked: a stored section has them all.
        """
        fields = type(self).model_fields
        defaults = {name: fields[name].get_default(call_default_factory=True) for name in names}
        return [name for name in names if getattr(self, name) != defaults[name]]

    @classmethod
    def is_layout(cls, keys: Sequence[str]) -> bool:
        """Whether an option, by its keys below this section, is marked `Layout`."""
        section: object = cls
        for key in keys:
            if not (isinstance(section, type) and issubclass(section, Section)):
                return False
            field = section.model_fields.get(key)
            if field is None or LAYOUT in field.metadata:
                return field is not None
            section = field.annotation
        return False

    def without_layout(self) -> dict[str, JsonValue]:
        """Return the values as JSON, without the options marked `Layout`, at any depth."""
        found = {}
        for name, field in type(self).model_fields.items():
            if LAYOUT in field.metadata:
                continue
            value = getattr(self, name)
            found[name] = (
                value.without_layout()
                if isinstance(value, Section)
                else self.model_dump(mode="json", include={name})[name]
            )
        return found

    def digest(self) -> str:
        """Return the SHA-256 of the canonical text, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def _without_removed_options(text: str | bytes, error: ValidationError) -> str | None:
    """Return the text without removed options; None if that is not all that is wrong with it."""
    found = error.errors(include_url=False)
    if any(
        each["type"] != "extra_forbidden"
        or each["loc"][-1] not in REMOVED_OPTIONS
        or each["input"] != REMOVED_OPTIONS[str(each["loc"][-1])]
        or not all(isinstance(part, str) for part in each["loc"])
        for each in found
    ):
        return None
    document = json.loads(text)
    for each in found:
        *sections, name = each["loc"]
        section = document
        for part in sections:
            section = section.get(part, section)  # the tag of a union is in no document
        section.pop(name, None)
    return json.dumps(document)


def tag_of(key: str, default: str) -> Callable[[object], str]:
    """Return a discriminator for a union of sections: a value's tag is its field `key`."""

    def tag(value: object) -> str:
        if isinstance(value, dict):
            return str(value.get(key, default))
        return str(getattr(value, key, ""))

    return tag


def canonical_json(value: JsonValue) -> str:
    """Return JSON with sorted keys and no white space; refuse NaN and infinity, which it lacks."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _through_json(value: JsonValue, validate: ValidatorFunctionWrapHandler) -> object:
    try:
        return validate(value)
    except ValidationError:  # as of tuples, which JSON writes as lists
        return validate(json.loads(canonical_json(value)))


TaskState = Annotated[dict[str, JsonValue], WrapValidator(_through_json)]
"""What a task learned, as it is read back from JSON."""


def digest_of(value: JsonValue) -> str:
    """Return the SHA-256 of a value's canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def flattened(document: Mapping[str, JsonValue], above: str = "") -> dict[str, JsonValue]:
    """Return the values of nested tables by their dotted names; lists and empty tables are values.

    `above` is the name of the table that the document is, and a dot.
    """
    found: dict[str, JsonValue] = {}
    for name, value in document.items():
        if isinstance(value, dict) and value:
            found |= flattened(value, f"{above}{name}.")
        else:
            found[f"{above}{name}"] = value
    return found


def with_values(
    document: Mapping[str, JsonValue], values: Mapping[str, JsonValue]
) -> dict[str, JsonValue]:
    """Return a new document with other values of some options, by their dotted names."""
    changed: dict[str, JsonValue] = json.loads(json.dumps(document))
    # Tables before their own options, which a new table would otherwise replace.
    for option in sorted(values, key=lambda name: name.count(".")):
        *tables, name = option.split(".")
        table = changed
        for part in tables:
            inner = table.get(part)
            if not isinstance(inner, dict):
                inner = table[part] = {}
            table = inner
        table[name] = values[option]
    return changed


def cut_sections(contract: str, reader: type[Section], *, with_layout: bool = True) -> str:
    """Cut a contract's text to the sections that a reader has as fields, as canonical JSON.

    A section that the text lacks is left to the reader's default, as in a contract file. Those
    marked `Layout` are no part of a result's identity, for which `with_layout` is off.

    Raises:
        PerennialError: the text is not a JSON object, or has a section that no contract has.
    """
    try:
        sections = json.loads(contract)
    except (ValueError, RecursionError) as error:
        raise PerennialError(
            "the pipeline's parameter `contract` is not valid JSON",
            evidence=str(error),
            action="start the pipeline with `perennial run`, or pass the contract's JSON text",
        ) from error
    unknown = (
        sorted(set(sections) - CONTRACT_SECTIONS) if isinstance(sections, dict) else [contract]
    )
    if unknown:
        raise PerennialError(
            "the pipeline's parameter `contract` is not a JSON object of a contract's sections",
            evidence=f"unknown: {', '.join(unknown)[:200]}",
            action="start the pipeline with `perennial run`, which writes out every default",
        )
    read = {
        name
        for name, field in reader.model_fields.items()
        if with_layout or LAYOUT not in field.metadata
    }
    return canonical_json({name: value for name, value in sections.items() if name in read})
