"""Training contract: one TOML file per model, checked whole before anything runs."""

import difflib
import json
import re
import tomllib
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field, JsonValue, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from components.check_skeleton.config import SkeletonSection
from components.contracts.data import DataSection, ModelSection, SplitSection
from components.contracts.errors import PerennialError
from components.contracts.section import Section
from components.contracts.triggers import TriggersSection
from components.engine.config import TrainingSection
from components.evaluate_model.config import GateSection
from components.register_model.config import RegistrySection
from components.select_checkpoint.config import SelectionSection
from components.train_model.config import ResourcesSection
from components.validate_data.config import ExpectationsSection

MAX_BYTES = 64 * 1024  # KFP's task payload must stay under 128 KiB with everything else in it


class Contract(Section):
    """Everything Perennial needs to know to keep one model trained."""

    model: ModelSection
    """Which model, and the task that defines it."""
    data: DataSection
    """The stream of data and what its columns mean."""
    split: SplitSection = Field(default_factory=SplitSection)
    """Which rows train, choose and judge."""
    expectations: ExpectationsSection = Field(default_factory=ExpectationsSection)
    """What the data must look like."""
    skeleton: SkeletonSection = Field(default_factory=SkeletonSection)
    """The checks before training."""
    training: TrainingSection = Field(default_factory=TrainingSection)
    """How to train."""
    resources: ResourcesSection = Field(default_factory=ResourcesSection)
    """What to train on."""
    selection: SelectionSection = Field(default_factory=SelectionSection)
    """How to choose the checkpoint."""
    gate: GateSection = Field(default_factory=GateSection)
    """What a challenger must prove."""
    registry: RegistrySection = Field(default_factory=RegistrySection)
    """How versions are recorded."""
    triggers: TriggersSection = Field(default_factory=TriggersSection)
    """When to train again."""

    def metric_names(self) -> dict[str, str]:
        """Where a metric is named → the metric; the task must have each of them."""
        named = {
            "training.metric": self.training.metric,
            "selection.metric": self.selection.metric,
            "gate.metric": self.gate.metric,
        }
        named |= {f"gate.required.{name}": name for name in self.gate.required}
        named |= {f"gate.max_regression.{name}": name for name in self.gate.max_regression}
        named |= {f"skeleton.human.{name}": name for name in self.skeleton.human}
        return {place: name for place, name in named.items() if name}


@dataclass(frozen=True)
class Problem:
    """One mistake in a contract.

    Attributes:
        where: File, line and key.
        found: The offending value; empty when something is missing.
        expected: What would be accepted.
        write: What to write instead.
    """

    where: str
    found: str
    expected: str
    write: str

    def __str__(self) -> str:
        lines = [f"{self.where}{f' = {self.found}' if self.found else ''}"]
        lines.append(f"  expected: {self.expected}")
        if self.write:
            lines.append(f"  write:    {self.write}")
        return "\n".join(lines)


class ContractError(PerennialError):
    """The contract has mistakes; all of them are listed."""

    def __init__(self, path: Path, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = f"{len(problems)} mistake{'s' if len(problems) > 1 else ''}"
        super().__init__(f"{path} has {count}:\n\n" + "\n\n".join(map(str, problems)))


def load_contract(path: Path) -> Contract:
    """Read and check a contract file; a relative `data.uri` is taken from the file's folder.

    Raises:
        ContractError: every mistake found, with file, line, value, expectation and remedy.
        PerennialError: there is no such file.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise PerennialError(
            f"the contract {path} cannot be read", evidence=str(error), action="check the path"
        ) from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problem = Problem(f"{path.name}", "", "valid TOML", str(error))
        raise ContractError(path, [problem]) from error
    try:
        contract = Contract.from_json(json.dumps(document, default=str))
    except ValidationError as error:
        found = [_problem(path, text, document, detail) for detail in error.errors()]
        raise ContractError(path, found) from error
    contract = _with_shared_metric(_with_absolute_uri(contract, path))
    problems = list(_cross_field_problems(path, text, contract))
    if problems:
        raise ContractError(path, problems)
    return contract


def to_toml(contract: Contract) -> str:
    """The resolved contract as TOML, every default written out."""
    sections = []
    for name, section in contract.model_dump(mode="json").items():
        lines = [f"[{name}]", *(_toml_line(key, value) for key, value in section.items())]
        sections.append("\n".join(lines))
    return "\n\n".join(sections)


def _with_absolute_uri(contract: Contract, path: Path) -> Contract:
    uri = contract.data.uri
    if "://" not in uri:
        uri = str((path.resolve().parent / uri).resolve())
    return contract.model_copy(update={"data": contract.data.model_copy(update={"uri": uri})})


def _with_shared_metric(contract: Contract) -> Contract:
    """What selection chooses by is what training must have kept the best of."""
    metric = contract.training.metric or contract.selection.metric
    training = contract.training.model_copy(update={"metric": metric})
    return contract.model_copy(update={"training": training})


def _cross_field_problems(path: Path, text: str, contract: Contract) -> Iterator[Problem]:
    def at(section: str, key: str) -> str:
        return _where(path, text, (section, key))

    data, split, training = contract.data, contract.split, contract.training
    if split.method == "time" and data.time is None:
        yield Problem(at("split", "method"), '"time"', "a time column to split by",
                      '[data] time = "…", or [split] method = "group" or "hash"')  # fmt: skip
    if split.method == "group" and data.group is None:
        yield Problem(at("split", "method"), '"group"', "a group column to split by",
                      '[data] group = "…"')  # fmt: skip
    if split.resolved_method(data) == "hash" and not data.ids:
        yield Problem(at("data", "ids"), "", "columns that identify a row, to split by their hash",
                      'ids = ["…"], or name `time` or `group`')  # fmt: skip
    for key in ("train_days", "test_days"):
        days = getattr(split, key)
        if days is not None and data.time is None:
            remedy = f'[data] time = "…", or remove {key}'
            yield Problem(at("split", key), str(days), "a time column to count days on", remedy)
    processes = contract.resources.num_processes
    parts = training.parallelism.data_size(processes)
    if training.global_batch_size < parts:
        yield Problem(
            at("training", "global_batch_size"), str(training.global_batch_size),
            f"at least one row for each of {parts} processes with rows of their own",
            f"global_batch_size = {parts}, or fewer processes",
        )  # fmt: skip
    if training.strategy == "single" and processes != 1:
        yield Problem(at("training", "strategy"), '"single"', "one process",
                      '[resources] num_processes = 1, or strategy = "ddp" or "fsdp"')  # fmt: skip
    kept_by, chosen_by = training.metric, contract.selection.metric
    if chosen_by and kept_by != chosen_by:
        yield Problem(
            at("training", "metric"), f'"{kept_by}"',
            f'the metric of [selection], "{chosen_by}": the best by it may not have been kept',
            f'metric = "{chosen_by}", or leave it out',
        )  # fmt: skip
    yield from _payload_problems(path, contract.to_json())


def _payload_problems(path: Path, payload: str) -> Iterator[Problem]:
    """What KFP could not carry."""
    if len(payload.encode()) > MAX_BYTES:
        limit = f"at most {MAX_BYTES:,} bytes, as KFP passes it as a parameter"
        yield Problem(path.name, "", limit, "shorten lists of columns or categories")
    if "python3" in payload:
        limit = 'no text "python3", which KFP\'s local runner rewrites in every value'
        yield Problem(path.name, "", limit, "rename the folder or column whose name contains it")


def _problem(path: Path, text: str, document: dict[str, object], detail: ErrorDetails) -> Problem:
    location = tuple(part for part in detail["loc"] if isinstance(part, (str, int)))
    where = _where(path, text, location)
    field = _field(Contract, location)
    match detail["type"]:
        case "extra_forbidden":
            known = _known_keys(location[:-1])
            near = difflib.get_close_matches(str(location[-1]), known, n=1)
            expected = f"one of: {', '.join(known)}"
            return Problem(where, "", expected, f"{near[0]} (did you mean this?)" if near else "")
        case "missing":
            purpose = first_sentence(field.description) if field else ""
            example = "[…]" if len(location) == 1 else "…"
            shown = f"[{location[0]}]" if len(location) == 1 else f"{location[-1]} = {example}"
            return Problem(where, "", f"a value; it is required. {purpose}".strip(), shown)
        case "value_error":
            return Problem(where, "", str(detail["msg"]).removeprefix("Value error, "), "")
        case _:
            found = json.dumps(_value(document, location), default=str)
            expected = str(detail["msg"]).replace("Input should be", "").strip() or detail["msg"]
            return Problem(where, found, expected, _remedy(field, location, detail))


def _remedy(field: FieldInfo | None, location: tuple[str | int, ...], detail: ErrorDetails) -> str:
    allowed = re.findall(r"'([^']+)'", str(detail.get("ctx", {}).get("expected", "")))
    near = difflib.get_close_matches(str(detail["input"]), allowed, n=1, cutoff=0.3)
    if near:
        return f'{location[-1]} = "{near[0]}"'
    if field is not None and field.default is not PydanticUndefined and field.default is not None:
        return f"{_toml_line(str(location[-1]), _plain(field.default))}  (the default)"
    return first_sentence(field.description) if field and field.description else ""


def _plain(value: object) -> JsonValue:
    if isinstance(value, BaseModel):
        return typing.cast("JsonValue", value.model_dump(mode="json"))
    return typing.cast("JsonValue", list(value) if isinstance(value, tuple) else value)


def first_sentence(text: str | None) -> str:
    """What a documentation begins with."""
    return re.split(r"(?<=[.;:])\s", " ".join((text or "").split()))[0].rstrip(";:")


def _known_keys(location: Sequence[str | int]) -> list[str]:
    section = _section(Contract, location)
    return list(section.model_fields) if section else []


def _field(model: type[BaseModel], location: Sequence[str | int]) -> FieldInfo | None:
    parent = _section(model, location[:-1])
    return parent.model_fields.get(str(location[-1])) if parent and location else None


def _section(model: type[BaseModel], location: Sequence[str | int]) -> type[BaseModel] | None:
    """The pydantic model that a location inside a contract lies in."""
    current: type[BaseModel] | None = model
    for part in location:
        if current is None or str(part) not in current.model_fields:
            # Keys of dictionaries are the user's own; their values may be sections again.
            continue
        current = next(iter(sections_in(current.model_fields[str(part)].annotation)), None)
    return current


def sections_in(annotation: object) -> Iterator[type[BaseModel]]:
    """The sections that a field of this type may hold, in the order of its declaration."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        yield from [annotation] if issubclass(annotation, BaseModel) else []
    for argument in typing.get_args(annotation):
        yield from sections_in(argument)


def _value(document: object, location: Sequence[str | int]) -> object:
    for part in location:
        if isinstance(document, dict):
            document = document.get(part, document)
        elif isinstance(document, list) and isinstance(part, int):
            document = document[part]
    return document


def _where(path: Path, text: str, location: Sequence[str | int]) -> str:
    """`contract.toml:12 [section] key`, the line found by reading the text."""
    parts = [str(part) for part in location]
    section = parts[0] if parts else ""
    key = ".".join(parts[1:])
    line = _line_of(text, section, parts[1] if len(parts) > 1 else "")
    return f"{path.name}{f':{line}' if line else ''} [{section}]{f' {key}' if key else ''}"


def _line_of(text: str, section: str, key: str) -> int | None:
    inside, header_line = False, None
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[+\s*([\w.\"-]+)", line)
        if header:
            names = header.group(1).split(".")
            inside = names[0] == section
            if inside and (header_line is None or key in names[1:]):
                header_line = number
        elif inside and key and re.match(rf"\s*\"?{re.escape(key)}\"?\s*[=.]", line):
            return number
    return header_line


def _toml_line(key: str, value: JsonValue) -> str:
    if value is None:
        return f"# {key} is not set"
    return f"{key} = {toml_value(value)}"


def toml_value(value: JsonValue) -> str:
    """A value as it is written in a contract."""
    if isinstance(value, dict):
        pairs = (
            f"{json.dumps(key)} = {toml_value(item)}"
            for key, item in value.items()
            if item is not None
        )
        return "{ " + ", ".join(pairs) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)
