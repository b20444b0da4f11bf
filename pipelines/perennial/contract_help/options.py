"""Options: every option of a contract, its type, its default, when to change it.

All of it is read from the sections themselves, so it cannot differ from what is checked.
"""

import difflib
import inspect
import json
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from perennial.contract import Contract
from perennial.contract_file.likely_values import sections_in, tag_of_kind
from perennial.contract_file.sections import first_sentence
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import ADVANCED
from perennial.contracts.toml import toml_value

NAME = "NAME"
"""Stands in a path for a key that the user chooses, such as a column."""
NOT_SET = "not set"
WIDTH = 100
INDENT = "    "
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
KINDS = {
    "integer": "integer",
    "number": "number",
    "string": "text",
    "boolean": "boolean",
    "null": NOT_SET,
    "object": f"table of {NAME} =",
    "": "anything",
}
"""Words for the types of JSON schema; a schema without one accepts anything."""

Schema: typing.TypeAlias = Mapping[str, typing.Any]
"""JSON schema of a field."""


@dataclass(frozen=True)
class Option:
    """One key of the contract."""

    path: str
    """Its sections and its name, joined by dots."""
    type: str
    default: str
    """Empty when the key is required."""
    documentation: str
    variant: str = ""
    """Where a section comes in several kinds: the key and the value that choose this one."""
    chosen: str = ""
    """For the key that chooses among them: the value that is described."""
    is_advanced: bool = False

    def lines(self) -> list[str]:
        """Yield the description for people."""
        default = f"default: {self.default}" if self.default else "required"
        if self.chosen:
            head = f"{self.path} = {self.chosen}{'   (the default)' if self.default else ''}"
            paragraphs = []
        else:
            head = f"{self.path}   (with {self.variant})" if self.variant else self.path
            paragraphs = [f"{self.type}; {default}"]
        paragraphs += self.documentation.split("\n\n")
        body = [line for each in paragraphs for line in textwrap.wrap(each, WIDTH - len(INDENT))]
        return [head, *(f"{INDENT}{line}" for line in body)]


def overview() -> list[str]:
    """Return the sections, with what each is about."""
    fields = Contract.model_fields
    width = max(map(len, fields))
    sections = [
        f"{name:<{width}}  {first_sentence(field.description)}" for name, field in fields.items()
    ]
    example = "perennial options training.optimizer"
    every = {option.path: option.is_advanced for option in options_in(Contract)}
    return [
        *sections,
        "",
        f"The options of one, or a single one: {example}",
        f"{len(every)} options, {sum(every.values())} of them advanced: add --all to see them",
    ]


def explain(path: str, *, with_advanced: bool = False) -> list[str]:
    """Return the description of an option, or of a section and its options.

    The path is such as `training.parallelism.zero_stage`, empty for the whole contract. An option
    that it names is shown even if it is advanced; of a section's, by default only their number.

    Raises:
        PerennialError: there is no such option; the nearest is named.
    """
    known = list(options_in(Contract))
    wanted = path.strip("[]").split(".") if path else []
    found = [option for option in known if _lies_in(option.path.split("."), wanted)]
    if not found:
        raise _unknown(path, [option.path for option in known])
    is_named = found[0].is_advanced or len({option.path for option in found}) == 1
    shown = [each for each in found if with_advanced or is_named or not each.is_advanced]
    lines = [line for option in shown for line in (*option.lines(), "")][:-1]
    hidden = len({option.path for option in found} - {option.path for option in shown})
    if hidden:
        noun = "advanced option is" if hidden == 1 else "advanced options are"
        lines += ["", f"{hidden} {noun} not shown: perennial options {path} --all"]
    return lines


def options_in(
    section: type[BaseModel], path: str = "", variant: str = "", *, is_advanced: bool = False
) -> Iterator[Option]:
    """Yield every option of a section, which lies at a path, and of the sections in it."""
    schema = section.model_json_schema()
    for name, field in section.model_fields.items():
        if variant.startswith(f"{name} = "):
            continue
        here = f"{path}.{name}" if path else name
        sections = list(sections_in(field.annotation))
        tag = tag_of_kind(sections[0]) if len(sections) > 1 else ""
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        hides = is_advanced or ADVANCED in field.metadata
        documentation = [document_of(section, name)]
        if len(sections) == 1:
            documentation.append(inspect.cleandoc(sections[0].__doc__ or ""))
        yield Option(
            path=here,
            type=_in_words(schema["properties"][name], schema.get("$defs", {})),
            default="" if field.is_required() else _written(default, tag),
            documentation="\n\n".join(filter(None, dict.fromkeys(documentation))),
            variant=variant,
            is_advanced=hides,
        )
        below = f"{here}.{NAME}" if typing.get_origin(field.annotation) is dict else here
        for each in sections:
            if tag:
                yield from _kind(each, tag, below)
            else:
                yield from options_in(each, below, variant, is_advanced=hides)


def _kind(section: type[BaseModel], tag: str, path: str) -> Iterator[Option]:
    """Yield the options of one kind of a section that has several, headed by what chooses it."""
    field = section.model_fields[tag]
    value = toml_value(typing.get_args(field.annotation)[0])
    default = "" if field.is_required() else value
    # What the key means is what the section is.
    purpose = inspect.cleandoc(section.__doc__ or "")
    yield Option(f"{path}.{tag}", "text", default, purpose, chosen=value)
    yield from options_in(section, path, f"{tag} = {value}")


def document_of(section: type[BaseModel], name: str) -> str:
    """Return a field's documentation: its own, or that of the section that it comes from."""
    fields = (getattr(each, "model_fields", {}).get(name) for each in section.__mro__)
    return next((str(field.description) for field in fields if field and field.description), "")


def _written(default: object, tag: str) -> str:
    if isinstance(default, BaseModel):
        return f"{tag} = {toml_value(getattr(default, tag))}" if tag else "as below"
    return NOT_SET if default is None else toml_value(typing.cast("typing.Any", default))


def _in_words(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    """Return what a JSON schema accepts, in words."""
    if "$ref" in schema:
        found = definitions[str(schema["$ref"]).rpartition("/")[2]]
        return "section" if "properties" in found else _in_words(found, definitions)
    if "oneOf" in schema:
        return f"section, one of {len(schema['oneOf'])} kinds"
    if "anyOf" in schema:
        kinds = [_in_words(each, definitions) for each in schema["anyOf"]]
        may_lack = f", or {NOT_SET}" if NOT_SET in kinds else ""
        return _joined([kind for kind in kinds if kind != NOT_SET]) + may_lack
    if "const" in schema or "enum" in schema:
        return _joined([json.dumps(each) for each in schema.get("enum", [schema.get("const")])])
    if schema.get("type") == "array":
        return _list_in_words(schema, definitions)
    words = [KINDS[schema.get("type", "")], *_limits(schema)]
    if schema.get("type") == "object":
        patterns = list(schema.get("patternProperties", {}).values())
        values = patterns[0] if patterns else schema.get("additionalProperties", True)
        words.append(KINDS[""] if values is True else _in_words(values, definitions))
    return " ".join(words)


def _list_in_words(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    if "prefixItems" in schema:
        parts = [_in_words(each, definitions) for each in schema["prefixItems"]]
        return f"[{', '.join(parts)}]"
    least = f"{schema['minItems']} or more: " if "minItems" in schema else ""
    return f"list of {least}{_in_words(schema['items'], definitions)}"


def _limits(schema: Schema) -> Iterator[str]:
    bounds = [
        f"{sign} {str(schema[key]).removesuffix('.0')}"
        for key, sign in BOUNDS.items()
        if key in schema
    ]
    if bounds:
        yield " and ".join(bounds)
    if "pattern" in schema:
        yield f"matching {schema['pattern']}"
    if "minLength" in schema:
        yield f"of {schema['minLength']} or more characters"
    if "maxLength" in schema:
        yield f"of at most {schema['maxLength']} characters"


def _joined(parts: Sequence[str]) -> str:
    *others, last = parts
    return f"{', '.join(others)} or {last}" if others else last


def _lies_in(path: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether an option is the one that is wanted, or lies in that section."""
    return len(path) >= len(wanted) and all(
        here in (there, NAME) for here, there in zip(path, wanted, strict=False)
    )


def _unknown(path: str, known: Sequence[str]) -> PerennialError:
    # People remember a name better than the sections that it lies in.
    names = {option.rpartition(".")[2] for option in known}
    resembled = difflib.get_close_matches(path.rpartition(".")[2], names, n=1, cutoff=0.8)
    alike = [option for option in known if option.rpartition(".")[2] in resembled]
    near = difflib.get_close_matches(path, alike, n=1, cutoff=0.0)
    near = near or difflib.get_close_matches(path, known, n=1)
    return PerennialError(
        f"the contract has no option {path!r}",
        evidence=f"the nearest is {near[0]}" if near else "",
        action=f"`perennial options {near[0]}`" if near else "`perennial options` lists sections",
    )
