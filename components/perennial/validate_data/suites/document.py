"""Suite document: the JSON that Great Expectations 1.x writes for a suite of expectations."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue, ValidationError

from perennial.clients.object_store import open_store, refuse_special_file
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import Section, canonical_json
from perennial.contracts.validation import Severity
from perennial.validate_data.config import PINNED

# The keys of an expectation that decide its verdict; identity and rendering are left out.
_KEPT = ("type", "kwargs", "meta", "severity")
_NOT_JUDGED = ("id", "rendered_content", "notes", "description", "expectation_context")


class SuiteExpectation(Section):
    """One expectation of a suite."""

    type: str
    """Great Expectations' name of it, such as `expect_column_values_to_not_be_null`."""
    kwargs: dict[str, JsonValue]
    severity: Severity = "critical"
    meta: dict[str, JsonValue] = Field(default_factory=dict)


class Suite(Section):
    """The expectations of a suite, in their order."""

    name: str
    expectations: tuple[SuiteExpectation, ...]


def parse_suite(text: str, place: str) -> Suite:
    """Read a suite's JSON; `place` names it in messages.

    Raises:
        PerennialError: it is not what `ExpectationSuite.to_json_dict()` of GX 1.x writes.
    """
    try:
        document = json.loads(text)
        expectations = document["expectations"]
        if old := [each for each in expectations if "expectation_type" in each]:
            raise PerennialError(
                f"{place} was written by Great Expectations 0.x",
                evidence=f"it has `expectation_type`: {old[0]['expectation_type']}",
                action="load it with GX 1.x and save it again, or rename the key to `type`",
            )
        kept: list[JsonValue] = [_kept(each) for each in expectations]
        return Suite.from_json(canonical_json({"name": document["name"], "expectations": kept}))
    except (KeyError, TypeError, AttributeError, ValueError, ValidationError) as error:
        raise PerennialError(
            f"{place} is not a suite of Great Expectations",
            evidence=" ".join(f"{type(error).__name__}: {error}".split())[:300],
            action="write it as `json.dumps(suite.to_json_dict())` of GX 1.x does, "
            "or draft one with `perennial profile`",
        ) from error


def suite_text(suite: Suite, meta: Mapping[str, JsonValue]) -> str:
    """Return a suite as Great Expectations writes it; each expectation begins on a line."""
    lines = [json.dumps(each.model_dump(mode="json")) for each in suite.expectations]
    return (
        f'{{"name": {json.dumps(suite.name)}, "id": null,\n"expectations": [\n'
        + ",\n".join(lines)
        + f'\n],\n"meta": {json.dumps(dict(meta))}, "notes": null}}\n'
    )


def read_suite_file(path: Path) -> str:
    """Return the canonical text of a suite in a file, by which it travels in the contract.

    Raises:
        PerennialError: there is no such file, or it is not a suite.
    """
    try:
        refuse_special_file(path)
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise PerennialError(
            f"the suite {path} cannot be read",
            evidence=f"{type(error).__name__}: {error}",
            action="correct expectations.suite: a path from the contract's folder, or an address "
            "in the object store",
        ) from error
    return parse_suite(text, str(path)).to_json()


def load_suite(value: str) -> Suite:
    """Load what `expectations.suite` holds once the contract is loaded: its text, or its address.

    Raises:
        PerennialError: it is missing from the store, is not what was pinned, or is not a suite.
    """
    address = PINNED.fullmatch(value)
    if address is None:
        return parse_suite(value, "expectations.suite")
    place = value.partition("#")[0]
    content = open_store(address["store"]).read(address["key"])
    if content is None:
        raise PerennialError(
            f"there is no suite at {place}",
            action="store it there, or correct expectations.suite",
        )
    digest = hashlib.sha256(content).hexdigest()
    if digest != address["digest"]:
        raise PerennialError(
            f"the suite at {place} is not the one that the contract pins",
            evidence=f"its SHA-256 is {digest}",
            action=f'write suite = "{place}#sha256={digest}" if you mean this one',
        )
    return parse_suite(content.decode(errors="replace"), place)


def lines_of_expectations(text: str) -> Iterator[int]:
    """Yield the line, counted from 1, on which each expectation of a suite's text starts."""
    decoder = json.JSONDecoder()
    key = re.search(r'"expectations"\s*:\s*\[', text)
    position = key.end() if key else len(text)
    while (start := re.compile(r"[\s,]*(?=\{)").match(text, position)) is not None:
        yield text.count("\n", 0, start.end()) + 1
        position = decoder.raw_decode(text, start.end())[1]


def _kept(expectation: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(expectation) - {*_KEPT, *_NOT_JUDGED})
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r} of {expectation.get('type')}")
    kept = {key: expectation[key] for key in _KEPT if expectation.get(key) is not None}
    # An argument that is null is one that was not given.
    kwargs = {key: value for key, value in kept["kwargs"].items() if value is not None}
    return kept | {"kwargs": kwargs}
