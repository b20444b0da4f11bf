"""Remedies: the line to write in the place of a mistake in a contract.

What a person meant is guessed, written into the file and validated: only a line with which the
mistake is gone is proposed. So values keep their meaning (`"600"` becomes 600, `"adamW"` becomes
`"adamw"`), and options under the names of other frameworks move to the place where they belong.
"""

import difflib
import json
import math
import re
import tomllib
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, JsonValue, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, to_jsonable_python

from perennial.contract_file.likely_values import likely_values, sections_in, tag_of_kind
from perennial.contract_file.synonyms import (
    EPOCHS,
    LIMITS,
    NOT_NEEDED,
    SECTIONS,
    TASK_OPTIONS,
    find_synonym,
    normal,
    written,
)
from perennial.contract_file.toml_text import (
    Location,
    find_headers,
    header_of,
    value_at,
    with_value,
    without_value,
)
from perennial.contracts.section import Section
from perennial.contracts.toml import toml_line, toml_value

REMOVE = "remove this line"
_NAMED_VALUE = re.compile(r"([a-z_][\w.]*) = (\"[^\"]*\"|'[^']*'|true|false|-?\d[\d.e+-]*)")
PLACEHOLDERS = {
    "model": '[model]\nname = "my-model"\ntask = "my_task:MyTask"',
    "data": '[data]\nuri = "data"\nlabel = "my_label"\nids = ["my_id"]',
    "name": 'name = "my-model"',
    "task": 'task = "my_task:MyTask"',
    "uri": 'uri = "data"',
    "label": 'label = "my_label"',
}
"""Lines to complete, for what only the user can know."""


@dataclass(frozen=True)
class Draft:
    """A file with mistakes, as it was written.

    Attributes:
        kind: The section that it should be.
        document: Its content.
        text: The same as text.
        folder: Its folder, which relative paths start from.
    """

    kind: type[Section]
    document: dict[str, typing.Any]
    text: str
    folder: Path

    @cached_property
    def mistakes(self) -> frozenset[tuple[str, Location]]:
        """Type and place of each mistake."""
        return self.mistakes_of(self.document)

    def mistakes_of(self, document: dict[str, typing.Any]) -> frozenset[tuple[str, Location]]:
        """Return type and place of each mistake that validation finds in a document."""
        try:
            self.kind.model_validate_json(json.dumps(document, default=str))
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False)
            return frozenset((each["type"], place_of(document, each)) for each in found)
        except ValueError:  # what JSON cannot hold
            return frozenset([("unusable", ())])
        return frozenset()

    def is_cured(self, changed: dict[str, typing.Any], mistake: Location, target: Location) -> bool:
        """Whether a changed document has fewer mistakes, and none at the target."""
        after = self.mistakes_of(changed)
        places = [place for _, place in after]
        at_target = any(place[: len(target)] == target for place in places)
        # Fewer mistakes are not enough: a line may not trade one mistake for another.
        return mistake not in places and not at_target and after <= self.mistakes


def find_remedy(draft: Draft, detail: ErrorDetails) -> str:
    """Return the line to write for a mistake that validation found; empty where none is known."""
    loc = place_of(draft.document, detail)
    match detail["type"]:
        case "extra_forbidden":
            return _for_unknown_name(draft, loc)
        case "missing":
            return _for_missing(draft, loc)
        case "value_error":
            return _for_contradiction(draft, loc, str(detail["msg"]))
        case _:
            return _for_value(draft, loc, detail)


def place_of(document: object, detail: ErrorDetails) -> Location:
    """Return the place of a mistake in a file, which has no tags of unions."""
    path: list[str | int] = []
    for part in detail["loc"]:
        inner = value_at(document, (part,))
        if inner is not None:
            document = inner
            path.append(part)
    return (*path, detail["loc"][-1]) if detail["type"] == "missing" else tuple(path)


# Names


def _for_unknown_name(draft: Draft, loc: Location) -> str:
    """Return what to write for an option that does not exist, or not in this section."""
    key, value = str(loc[-1]), value_at(draft.document, loc)
    name = normal(key)
    # From the surest meaning to the vaguest: the first line that cures the mistake is shown.
    if name in EPOCHS and "training.steps" in _paths(draft.kind):
        return _steps_of_epochs(draft, loc, value)
    if len(loc) == 1 and isinstance(value, dict) and (name in SECTIONS or name not in NOT_NEEDED):
        return _for_unknown_section(draft, loc)
    for find in (_correct_table, _move_option, _move_into_table):
        if line := find(draft, loc):
            return line
    if name in NOT_NEEDED:
        return f"{REMOVE}: {NOT_NEEDED[name]}"
    if "model.options" in _paths(draft.kind) and (name in TASK_OPTIONS or loc[0] == "model"):
        target = ("model", "options", key)
        changed = with_value(without_value(draft.document, loc), target, value)
        return _line(draft, changed, loc, target, "an option of the task")
    return f"{REMOVE}: there is no such option"


def _correct_table(draft: Draft, loc: Location) -> str:
    """Return the line of a table with the right names of all its keys; empty if none is."""
    table, field = value_at(draft.document, loc[:-1]), field_at(draft.kind, loc[:-1])
    if (
        field is None
        or len(sections_in(field.annotation)) < 2
        or loc[:-1] in find_headers(draft.text)
    ):
        return ""
    # `{ type = "SGD", lr = 0.1 }` has several wrong names in one line: curing them one by one would
    # never give a valid table.
    values = (
        each for each in likely_values(table, field, draft.document) if isinstance(each, dict)
    )
    return _try_values(draft, loc, loc[:-1], values, document=draft.document)


def _move_into_table(draft: Draft, loc: Location) -> str:
    """Return the line with a key in the table beside it that knows such keys; empty if none does.

    Such as a check's name, which belongs into `severities`.
    """
    key, value = str(loc[-1]), value_at(draft.document, loc)
    without = without_value(draft.document, loc)
    for name, field in _fields_in(draft.kind, loc[:-1]).items():
        target = (*loc[:-1], name, key)
        if typing.get_origin(field.annotation) is not dict:
            continue
        # A table that takes any key proves nothing about this one.
        anything = with_value(without, (*target[:-1], f"not-{key}"), value)
        if anything is None or draft.is_cured(anything, loc, target[:-1]):
            continue
        if line := _try_values(draft, loc, target, [value], document=without):
            return line
    return ""


def _move_option(draft: Draft, loc: Location) -> str:
    """Return the line that sets the option which a name stands for; empty if there is none."""
    value, here = value_at(draft.document, loc), ".".join(map(str, loc[:-1]))
    without = without_value(draft.document, loc)
    for path, convert, why, is_sure in _meanings(draft, here, normal(str(loc[-1]))):
        target = tuple(path.split("."))
        if value_at(without, target) is not None:
            return f"{REMOVE}: {path} is set already"
        converted = value
        if convert is not None:
            with suppress(ValueError, TypeError, ZeroDivisionError):
                converted = convert(value, draft.document)
        values = likely_values(converted, field_at(draft.kind, target), draft.document, target[-1])
        if line := _try_values(draft, loc, target, values, document=without, why=why):
            return line
        field = field_at(draft.kind, target)
        if not is_sure or field is None or field.is_required() or field.default is None:
            continue
        # Sure of the name, but no value is like the one given, such as 0 workers: the default is.
        default = to_jsonable_python(field.get_default(call_default_factory=True))
        changed = with_value(without, target, default)
        if changed is not None and draft.is_cured(changed, loc, target):
            return f"{REMOVE}: {path} is {toml_value(default)} by default"
    return ""


def _meanings(
    draft: Draft, here: str, name: str
) -> Iterator[tuple[str, Callable[..., JsonValue] | None, str, bool]]:
    """Yield the options that a name may stand for, likeliest first.

    Each with the conversion of its value, the reason, and whether it is more than resembled.
    """
    paths = _paths(draft.kind)
    own = [f"{here}.{each}" if here else each for each in _fields_in(draft.kind, here.split("."))]
    meant = LIMITS.get(name, name)
    same = [path for path in own if normal(path.rpartition(".")[2]) in (name, meant)]
    yield from ((path, None, "", True) for path in same)
    synonym = find_synonym(f"{here}.{name}") or find_synonym(name)
    # `dir` and `path` are the data's in [data] alone; elsewhere something is to be written there.
    is_data = synonym is not None and synonym.path == "data.uri"
    if synonym is not None and synonym.path in paths and not (is_data and here not in ("", "data")):
        yield synonym.path, synonym.convert, synonym.why, True
    if name in NOT_NEEDED:
        return
    # The same name in another section is likelier than one that is only spelt alike in this one.
    elsewhere = [path for path in paths if path.rpartition(".")[2] == name]
    for path in sorted(elsewhere, key=lambda path: path.count(".")):
        yield path, None, "", False
    names = {path.rpartition(".")[2]: path for path in own}
    for near in difflib.get_close_matches(name, names, n=2):
        yield names[near], None, "", False
    names = {path.rpartition(".")[2]: path for path in sorted(paths, reverse=True)}
    for near in difflib.get_close_matches(name, names, n=1, cutoff=0.8):
        yield names[near], None, "", False


def _for_unknown_section(draft: Draft, loc: Location) -> str:
    """Return the header of the section that a name stands for; empty if there is none."""
    name = normal(str(loc[0]))
    every = _paths(draft.kind).items()
    paths = [path for path, field in every if sections_in(field.annotation)] + ["model.options"]
    # Also by their last name, such as `optimizer` of `training.optimizer`; outer ones count first.
    inner_first = sorted(paths, key=lambda path: "." not in path)
    sections = {path.rpartition(".")[2]: path for path in inner_first}
    near = [name, SECTIONS.get(name, ""), *difflib.get_close_matches(name, sections, n=1)]
    found = next((each for each in near if each in sections or each in paths), "")
    if not found:
        return ""
    found = sections.get(found, found)
    if value_at(draft.document, tuple(found.split("."))) is not None:
        return f"{REMOVE}, and move its keys to [{found}]"
    return f"[{found}]"


def _steps_of_epochs(draft: Draft, loc: Location, epochs: JsonValue) -> str:
    """Return the steps that so many epochs have; with the rows of the data where they are near."""
    if value_at(draft.document, ("training", "steps")) is not None:
        return f"{REMOVE}: training.steps is set already"
    # Who writes `epochs` writes `batch_size` as well, which is another mistake of the same file.
    batch = written(draft.document, "training.global_batch_size") or 1024
    split = value_at(draft.document, ("split",))
    shares = split if isinstance(split, dict) else {}
    rows = sum(footer.num_rows for footer in _read_footers(draft))
    try:
        held_out = sum(
            float(shares.get(f"{name}_fraction", share))
            for name, share in (("validation", 0.15), ("test", 0.25))
        )
        passes = float(str(epochs))
        formula = f"{passes:g} epochs = {passes:g} x training rows / {int(str(batch))}"
        if not rows or shares.get("train_days") is not None:
            line = _line(draft, {"training": {"steps": 0}}, loc, ("training", "steps"), formula)
            return line.replace("steps = 0", "steps = …", 1)
        train = rows * (1.0 - held_out)
        steps = max(math.ceil(passes * train / int(str(batch))), 1)
    except (TypeError, ValueError, ZeroDivisionError):
        return "steps = …  # epochs x training rows / global_batch_size"
    why = f"{passes:g} epochs of about {train:,.0f} training rows / {batch}"
    return _line(draft, {"training": {"steps": steps}}, loc, ("training", "steps"), why)


def _read_footers(draft: Draft) -> list[typing.Any]:
    """Return the footer of each file of the dataset; empty if it is not here, or unreadable."""
    uri = value_at(draft.document, ("data", "uri"))
    if not isinstance(uri, str) or not uri or "://" in uri:
        return []
    try:
        import pyarrow.parquet as pq  # noqa: PLC0415 - only hints need it

        return [pq.read_metadata(file) for file in (draft.folder / uri).rglob("*.parquet")]
    except Exception:  # a hint; the snapshot explains what is wrong with a file
        return []


# Values


def _for_value(draft: Draft, loc: Location, detail: ErrorDetails) -> str:
    """Return what to write for a value of the wrong type or out of range."""
    context = detail.get("ctx", {})
    if "write" in context:
        return str(context["write"])
    if any(isinstance(part, int) for part in loc):  # an element: its whole list is written
        loc = loc[: next(n for n, part in enumerate(loc) if isinstance(part, int))]
    value = value_at(draft.document, loc)
    # 0 and negative numbers are rarely meant as "the least possible".
    bounds = [context[key] for key in ("ge", "le") if key in context]
    is_near = isinstance(value, int | float) and value > 0
    field = field_at(draft.kind, loc)
    values = [
        *likely_values(value, field, draft.document, str(loc[-1])),
        *(bounds if is_near else []),
    ]
    if line := _try_values(draft, loc, loc, values, document=draft.document):
        return line
    is_table = field is not None and typing.get_origin(field.annotation) is dict
    if is_table and field is not field_at(draft.kind, loc[:-1]):  # not one of its own keys
        return f"{loc[-1]} = {{ NAME = … }}"
    if field is None or field.is_required() or field.default_factory is not None:
        return PLACEHOLDERS.get(str(loc[-1]), "") if loc else ""
    default = to_jsonable_python(field.default)
    if default is None:
        return f"{REMOVE}: the option is then not set"
    if len(kinds := sections_in(field.annotation)) > 1:
        default = {tag_of_kind(kinds[0]): default[tag_of_kind(kinds[0])]}
    return _line(draft, with_value(draft.document, loc, default), loc, loc, "the default")


def _try_values(
    draft: Draft,
    mistake: Location,
    target: Location,
    values: Iterable[JsonValue],
    *,
    document: dict[str, typing.Any],
    why: str = "",
) -> str:
    """Return the line with the first of these values that cures the mistake; empty if none does."""
    for value in values:
        changed = with_value(document, target, value)
        if changed is not None and draft.is_cured(changed, mistake, target):
            return _line(draft, changed, mistake, target, why)
    return ""


# Contradictions


def _for_contradiction(draft: Draft, loc: Location, message: str) -> str:
    """Return a change, of those that the message names, with which the contradiction is gone."""
    for targets, changed in _changes_named_in(draft, loc, message):
        if changed is not None and draft.is_cured(changed, loc, targets[0]):
            return "\n".join(
                _line(draft, changed, loc, target)
                if value_at(changed, target) is not None
                else _remove_line(draft, target)
                for target in targets
            )
    return ""


def _changes_named_in(
    draft: Draft, loc: Location, message: str
) -> Iterator[tuple[tuple[Location, ...], dict[str, typing.Any] | None]]:
    """Yield changes of options that a message names: where, and the document with it."""
    document = draft.document
    # What validators say is only where to look: each change is tried before it is proposed.
    named = [
        (target, value.strip("'\""))
        for name, value in _NAMED_VALUE.findall(message)
        for target in _targets(draft, loc, name)
    ]
    present = list(
        dict.fromkeys(target for target, _ in named if value_at(document, target) is not None)
    )
    if "swap" in message and len(present) > 1:
        first, second = (value_at(document, target) for target in present[:2])
        swapped = with_value(document, present[0], second) or {}
        yield (present[0], present[1]), with_value(swapped, present[1], first)
    # Removing an option always cures, and loses what was meant: it is the last proposal unless the
    # message itself names it first.
    removals = [((target,), without_value(document, target)) for target in present]
    is_removed_first = "remove" in message.partition(" set ")[0]
    yield from removals if is_removed_first else []
    advice = re.search(r"(?:set|write|use|give) (.*)", message)
    for name, text in _NAMED_VALUE.findall(advice[1]) if advice else []:
        for target in _targets(draft, loc, name):
            with suppress(tomllib.TOMLDecodeError):
                value = tomllib.loads("v = " + text.replace("'", '"'))["v"]
                yield (target,), with_value(document, target, value)
    for target in present:
        for other, text in named:
            if other != target and re.fullmatch(r"-?\d[\d.e+-]*", text):
                yield (target,), with_value(document, target, json.loads(text.rstrip(".")))
    for quoted in re.findall(r"'([^']+)'", message):  # a column in two lists
        for target in _lists_with(document, loc, quoted):
            found = value_at(document, target)
            rest = [each for each in found if each != quoted]
            if found.count(quoted) > 1:
                rest = list(dict.fromkeys(found))
            yield (target,), with_value(document, target, rest)
    for target, renamed in _renamed_keys(document, loc, message):
        yield (target,), renamed
    yield from removals


def _targets(draft: Draft, loc: Location, name: str) -> Iterator[Location]:
    """Yield the places that a name in a section's message may mean."""
    parts = tuple(name.split("."))
    for start in range(len(loc), -1, -1):
        if ".".join(map(str, (*loc[:start], *parts))) in _paths(draft.kind):
            yield (*loc[:start], *parts)
            return
    if field_at(draft.kind, (*loc, *parts)) is not None:
        yield (*loc, *parts)


def _lists_with(document: object, loc: Location, item: str) -> Iterator[Location]:
    section = value_at(document, loc)
    for key, value in section.items() if isinstance(section, dict) else ():
        if isinstance(value, list) and item in value:
            yield (*loc, key)


def _renamed_keys(
    document: dict[str, typing.Any], loc: Location, message: str
) -> Iterator[tuple[Location, dict[str, typing.Any] | None]]:
    """Yield a table with the right names for the unknown ones that a message lists."""
    found = re.match(r"(?:Value error, )?(\w+) has unknown \w+: ([\w, ]+); .* are: (.*)", message)
    table = value_at(document, (*loc, found[1])) if found else None
    if not found or not isinstance(table, dict):
        return
    unknown, known = found[2].split(", "), found[3].split(", ")
    nearest = {name: difflib.get_close_matches(name, known, n=1) for name in unknown}
    renamed = {(nearest.get(name) or [name])[0]: value for name, value in table.items()}
    yield (*loc, found[1]), with_value(document, (*loc, found[1]), renamed)


# Missing options


def _for_missing(draft: Draft, loc: Location) -> str:
    """Return a required option: as it is written under another name, else an example."""
    here = ".".join(map(str, loc[:-1]))
    section = value_at(draft.document, loc[:-1])
    fields = _fields_in(draft.kind, loc[:-1])
    for key in section if isinstance(section, dict) else ():
        if key in fields:
            continue
        if len(loc) == 1 and (line := _for_unknown_section(draft, (key,))) == f"[{loc[0]}]":
            return line
        if ".".join(map(str, loc)) in [path for path, *_ in _meanings(draft, here, normal(key))]:
            return _move_option(draft, (*loc[:-1], key))
    line = PLACEHOLDERS.get(str(loc[-1]), "")
    if loc == ("data", "label") and (footers := _read_footers(draft)):
        names = footers[0].schema.to_arrow_schema().names
        shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
        return f"{line}  # one of: {shown}"
    return line


# Lines


def _line(
    draft: Draft,
    changed: dict[str, typing.Any] | None,
    mistake: Location,
    target: Location,
    why: str = "",
) -> str:
    """Return the line that sets a value as in a changed document, and where it goes if not here."""
    headers = find_headers(draft.text)
    header = header_of(headers, target)
    notes = []
    if header != (mistake if mistake in headers else header_of(headers, mistake)):
        notes.append(f"in [{'.'.join(map(str, header))}]")
    if why:
        notes.append(why)
    comment = f"  # {'; '.join(notes)}" if notes else ""
    place = target[: len(header) + 1]
    return toml_line(str(place[-1]), value_at(changed, place)) + comment


def _remove_line(draft: Draft, target: Location) -> str:
    header = header_of(find_headers(draft.text), target)
    inner = ".".join(map(str, target[len(header) :]))
    return f"remove {inner} from [{'.'.join(map(str, header))}]"


# Sections


def _paths(kind: type[BaseModel], above: str = "") -> dict[str, FieldInfo]:
    """Return every option of a section by its path; tables with free keys end there."""
    found: dict[str, FieldInfo] = {}
    for name, field in kind.model_fields.items():
        path = f"{above}.{name}" if above else name
        found.setdefault(path, field)
        if typing.get_origin(field.annotation) is not dict:
            for section in sections_in(field.annotation):
                found = _paths(section, path) | found
    return found


def _fields_in(kind: type[BaseModel], path: Sequence[str | int]) -> dict[str, FieldInfo]:
    """Return the options of a section, of all its kinds; an empty path is the whole file."""
    field = field_at(kind, path) if any(path) else None
    sections = sections_in(field.annotation) if field is not None else []
    sections = sections if any(path) else [kind]
    return {name: each for one in sections for name, each in one.model_fields.items()}


def field_at(kind: type[BaseModel], path: Sequence[str | int]) -> FieldInfo | None:
    """Return the field of an option; that of any variant, where a section has several."""
    sections = [kind]
    field = None
    for part in path:
        fields = [
            each.model_fields[str(part)] for each in sections if str(part) in each.model_fields
        ]
        if not fields:
            if field is not None and typing.get_origin(field.annotation) is dict:
                continue  # a key that the user chooses
            return None
        field = fields[0]
        sections = [section for each in fields for section in sections_in(each.annotation)]
    return field
