"""Code state: the sources that a local run began with, and whether they are still the same."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Self

from perennial.clients.object_store import sha256_of_file
from perennial.contracts.artifact import Artifact
from perennial.contracts.environment import RUN_FOLDER
from perennial.contracts.errors import BadTaskError, join_names
from perennial.contracts.section import Section


class SourceFile(Section):
    """A source as the run began with it."""

    size_bytes: int
    modified_ns: int
    sha256: str

    def is_changed(self, path: Path) -> bool:
        """Whether the file has another content now, or is gone."""
        try:
            found = path.stat()
            if (found.st_size, found.st_mtime_ns) == (self.size_bytes, self.modified_ns):
                return False
            return sha256_of_file(path) != self.sha256
        except OSError:
            return True


class CodeState(Artifact):
    """The sources of a local run; stored in its folder."""

    file_name: ClassVar[str] = "sources.json"

    sources: dict[str, SourceFile]

    @classmethod
    def of(cls, files: Iterable[Path]) -> Self:
        """Return the present state of files."""
        found = {}
        for path in files:
            status = path.stat()
            found[str(path)] = SourceFile(
                size_bytes=status.st_size,
                modified_ns=status.st_mtime_ns,
                sha256=sha256_of_file(path),
            )
        return cls(sources=found)


def refuse_edited_code() -> None:
    """Refuse to go on with other code than the run began with; nothing outside a local run.

    Each step and each attempt of a training imports the task again: a model would be trained by one
    code and selected, judged and registered by another, under the name of the first.

    Raises:
        BadTaskError: a source was edited or deleted since.
    """
    folder = Path(os.environ.get(RUN_FOLDER) or os.devnull)
    if not (folder / CodeState.file_name).is_file():
        return
    sources = CodeState.read(folder).sources
    changed = [path for path, then in sources.items() if then.is_changed(Path(path))]
    if changed:
        raise BadTaskError(
            "the code changed while the run was going",
            evidence=f"not as when the run began: {join_names(changed)}",
            action="run the same command again: it begins a new run with the present code. To "
            "finish this run, put the code back first",
        )
