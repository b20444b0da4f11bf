"""Artifact: a value that one step writes whole and later steps read, with a schema version.

What a step hands on is one JSON file: its own value, then those of the steps before it. So each
step takes only what its predecessor made, and the dashboard can show the file.
"""

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

from pydantic import JsonValue, model_validator

from perennial.contracts.errors import PerennialError
from perennial.contracts.section import Section


class Artifact(Section):
    """A value stored as `<folder>/<file_name>`; subclasses document what else the folder holds."""

    file_name: ClassVar[str]
    schema_version: int = 1
    """Raised when the file tree or a field changes its meaning; only the own one can be read."""

    @model_validator(mode="after")
    def _is_of_this_version(self) -> Self:
        own = type(self).model_fields["schema_version"].default
        if self.schema_version != own:
            raise ValueError(f"schema_version is {self.schema_version}, this code reads {own}")
        return self

    def write(self, folder: Path) -> Path:
        """Store the value; the file appears whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / self.file_name
        write_atomically(target, self.to_json().encode())
        return target

    @classmethod
    def document_name(cls) -> str:
        """Return its name among the documents of a step's file."""
        return cls.file_name.removesuffix(".json")

    @classmethod
    def find(cls, place: Path) -> Self | None:
        """Return the value among what a step handed on; None if it is not there."""
        found = documents_in(place).get(cls.document_name())
        return None if found is None else cls.from_json(json.dumps(found))

    @classmethod
    def read(cls, place: Path) -> Self:
        """Load the value from a folder, or from the file that a step handed on.

        Raises:
            PerennialError: the value is missing or does not fit this version of the schema.
        """
        target = place / cls.file_name if place.is_dir() or not place.exists() else place
        try:
            if target != place:
                return cls.from_json(target.read_bytes())
            found = json.loads(place.read_bytes()).get(cls.document_name())
            if found is not None:
                return cls.from_json(json.dumps(found))
        except FileNotFoundError:
            pass
        except (ValueError, AttributeError) as error:
            raise PerennialError(
                f"{cls.__name__} cannot be read: it was written by another version or is damaged",
                evidence=f"{target}: {error}",
                action="run the pipeline again from the step that writes it",
            ) from error
        raise PerennialError(
            f"{cls.__name__} is missing",
            evidence=f"there is no {target}"
            if target != place
            else f"{place} has no {cls.document_name()!r}",
            action="run the pipeline again from the step that writes it",
        )


def hand_on(
    target: Path, own: Artifact, *before: Path, more: Mapping[str, JsonValue] | None = None
) -> None:
    """Write the file that a step hands on: its own value, more documents, then the earlier ones."""
    documents: dict[str, JsonValue] = {own.document_name(): own.model_dump(mode="json")}
    documents |= more or {}
    for place in before:
        documents = documents | {
            name: found for name, found in documents_in(place).items() if name not in documents
        }
    # One document a line, the own one first, which is what a preview shows.
    lines = (
        f"{json.dumps(name)}: {json.dumps(found, allow_nan=False)}"
        for name, found in documents.items()
    )
    write_atomically(target, ("{" + ",\n".join(lines) + "}\n").encode())


def documents_in(place: Path) -> dict[str, JsonValue]:
    """Return name → document of what a step handed on: a file, or a folder of single ones."""
    if place.is_dir():
        files = sorted(place.glob("*.json"))
        return {file.stem: json.loads(file.read_bytes()) for file in files}
    found = json.loads(place.read_bytes())
    return found if isinstance(found, dict) else {}


def own_document(place: Path, name: str) -> str:
    """Return the JSON text of the document that a step made itself, the first of its file.

    Those after it, of the steps before, take many times as long to read.

    Raises:
        ValueError: the file is damaged.
        KeyError: it has no such document.
    """
    start, line = f"{{{json.dumps(name)}: ", ""
    if not place.is_dir():
        with place.open() as stream:
            line = stream.readline()
    if not line.startswith(start):
        return json.dumps(documents_in(place)[name])
    _, end = json.JSONDecoder().raw_decode(line, len(start))
    return line[len(start) : end]


def write_atomically(target: Path, content: bytes) -> None:
    """Write a file through a temporary name, flushed to disk, so that no reader sees a part."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder: a rename is atomic only within one file system.
    # At random: threads, and pods that share a volume, may write the same file at once.
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def flush_path(path: Path) -> None:
    """Make a file's content, or the names in a folder, survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree(folder: Path) -> None:
    """Make all below a folder survive a loss of power, before a marker states it to be complete."""
    for path in (*folder.rglob("*"), folder):
        flush_path(path)
