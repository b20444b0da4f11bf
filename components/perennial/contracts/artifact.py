"""Artifact: a folder that one step writes whole and later steps read, with a schema version."""

import os
from pathlib import Path
from typing import ClassVar, Self

from pydantic import model_validator

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
    def read(cls, folder: Path) -> Self:
        """Load the value stored in a folder.

        Raises:
            PerennialError: the file is missing or does not fit this version of the schema.
        """
        target = folder / cls.file_name
        try:
            return cls.from_json(target.read_bytes())
        except FileNotFoundError as error:
            raise PerennialError(
                f"{cls.__name__} is missing",
                evidence=f"there is no {target}",
                action="run the pipeline again from the step that writes it",
            ) from error
        except ValueError as error:
            raise PerennialError(
                f"{cls.__name__} cannot be read: it was written by another version or is damaged",
                evidence=f"{target}: {error}",
                action="run the pipeline again from the step that writes it",
            ) from error


def write_atomically(target: Path, content: bytes) -> None:
    """Write a file through a temporary name, flushed to disk, so that no reader sees a part."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def flush_folder(folder: Path) -> None:
    """Make the names in a folder survive a loss of power, as its flushed files do."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
