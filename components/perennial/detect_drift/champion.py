"""Champion: read a registered version's reference, and report its errors with its name."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from perennial.contracts.artifact import Artifact
from perennial.contracts.errors import DamagedModelError, PerennialError
from perennial.engine.evaluation.scoring import blames_machine
from perennial.engine.export import WEIGHTS_FILE
from perennial.registry.model_registry import ModelVersion
from perennial.registry.version_files import damaged_file

AnArtifact = TypeVar("AnArtifact", bound=Artifact)


def read_artifact(kind: type[AnArtifact], champion: ModelVersion, files: Path) -> AnArtifact:
    """Read an artifact of the champion: the reference or the snapshot of its training.

    Raises:
        DamagedModelError: it is missing or unreadable.
    """
    try:
        return kind.read(files)
    except PerennialError as error:
        raise damaged_file(champion, kind.file_name, error) from error


@contextmanager
def scoring(champion: ModelVersion) -> Iterator[None]:
    """Convert exceptions of the champion's code to an error that names the version.

    Raises:
        DamagedModelError: its weights are not those that were exported.
        PerennialError: it cannot be loaded, or cannot score rows.
    """
    try:
        yield
    except DamagedModelError as error:
        raise damaged_file(champion, WEIGHTS_FILE, error) from error
    except PerennialError:
        raise
    except (Exception, SystemExit) as error:  # user code, possibly years old
        if isinstance(error, Exception) and blames_machine(error):
            raise
        first = str(error).splitlines()[0] if str(error) else ""
        raise PerennialError(
            f"{champion.name} version {champion.version} cannot be scored on the new rows",
            evidence=f"{type(error).__name__}: {first}",
            action="check whether the task's code or the data's columns changed since it was "
            f"registered (`perennial explain {champion.name}@{champion.version}` shows its commit)",
        ) from error
