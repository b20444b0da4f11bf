"""Sources: finds the code that trained a version, else checks it out and runs that."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from perennial.clients.version_control import check_out, place_in_repository, top_of
from perennial.contracts.errors import PerennialError
from perennial.contracts.old_names import OLD
from perennial.registry_commands.catalogue import VersionRecord
from perennial.registry_commands.training_record import (
    readable_contract,
    recorded_lineage,
    recorded_patch,
)
from perennial.runs import code_digest


@dataclass(frozen=True)
class CheckoutRun:
    """A second run of the command, with the original sources.

    Attributes:
        arguments: What follows `perennial` in it, without `--code`.
        repository: A folder of the repository that holds the commit.
    """

    arguments: tuple[str, ...]
    repository: Path


def find_training_sources(version_record: VersionRecord, repository: Path) -> Path | None:
    """Return the folder whose sources trained a version, if the working tree has them.

    None when they are neither at their place in the repository nor in the folder itself.

    Raises:
        PerennialError: the version has no lineage.
    """
    lineage, contract = recorded_lineage(version_record), readable_contract(version_record)
    top = top_of(repository)
    folders = [top / lineage.code_place] if top is not None and lineage.code_place else []
    for folder in (*folders, repository):
        if contract is not None and code_digest(contract, [folder]) == lineage.code_digest:
            return folder
    return None


def run_in_checkout(
    version_record: VersionRecord, again: CheckoutRun, say: Callable[[str], None]
) -> int:
    """Run the command with the original commit and uncommitted changes; return its exit code.

    Perennial itself is also that of the commit, if the commit holds it: whatever
    read and wrote the version's files reads them now.

    Args:
        version_record: The version.
        again: What to run.
        say: Told which sources run, before they do.

    Raises:
        PerennialError: no commit is recorded, or the repository lacks the sources.
    """
    lineage, patch = recorded_lineage(version_record), recorded_patch(version_record)
    if not lineage.commit:
        raise PerennialError(
            f"the sources here are not those that trained {version_record.title}",
            evidence=f"no commit is recorded, and their digest is not {lineage.code_digest}",
            action="--code FOLDER names the folder of the task's original module; with --anyway "
            "other sources train, too",
        )
    with TemporaryDirectory() as scratch:
        top, empty = Path(scratch) / "sources", Path(scratch) / "tmp"
        empty.mkdir()
        check_out(again.repository, lineage.commit, patch, top)
        patched = f" with {len(patch.splitlines())} lines of patch" if patch else ""
        say(f"sources: commit {lineage.commit}{patched}, from {top_of(again.repository)}")
        place = lineage.code_place or place_in_repository(again.repository)
        program, folders = _program_of(top)
        command = [sys.executable, "-m", program, *again.arguments, "--code", str(top / place)]
        done = subprocess.run(command, cwd=empty, env=_environment(folders, empty), check=False)
        return done.returncode


def _program_of(top: Path) -> tuple[str, list[Path]]:
    """Perennial of the commit where the commit holds it, else the one that runs now."""
    if (top / "pipelines" / "perennial" / "cli.py").is_file():
        return "perennial.cli", [top / "components", top / "pipelines"]
    if (top / "pipelines" / "cli.py").is_file() and (top / OLD / "engine").is_dir():
        return "pipelines.cli", [top]  # of before both folders became the package `perennial`
    return "perennial.cli", []


def _environment(folders: Sequence[Path], scratch: Path) -> dict[str, str]:
    inherited = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    # The child starts elsewhere, where `.` would mean another folder.
    search = [*map(str, folders), *(str(Path(place).resolve()) for place in inherited)]
    # What a killed training leaves behind goes with the folder.
    return {**os.environ, "PYTHONPATH": os.pathsep.join(search), "TMPDIR": str(scratch)}
