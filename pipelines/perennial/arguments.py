"""Arguments that several verbs share: what is out of range is refused before anything starts."""

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from perennial.contracts.errors import PerennialError

if TYPE_CHECKING:
    from pydantic import JsonValue

    from perennial.runs import Home

FAILED = 1
"""The exit code of a run, or of what was asked about, that failed."""
OPTION = re.compile(r"-h|--([a-z][a-z-]*(=.*)?)?", re.DOTALL)


def path_of(text: str | Path) -> Path:
    """Return a path that the operating system can have.

    Raises:
        typer.BadParameter: it is empty or holds a NUL character.
    """
    if not str(text) or "\0" in str(text):
        raise typer.BadParameter(f"{text!r} is not a path")
    return Path(text)


def text_of(text: str) -> str:
    """Return a text, which may begin with a dash.

    Raises:
        typer.BadParameter: the text was forgotten, and this is the next option.
    """
    if OPTION.fullmatch(text):
        raise typer.BadParameter(f"expected a text (got the option {text!r})")
    return text


def existing_part(path: Path) -> Path:
    """Return a path, or the nearest folder above it that exists."""
    return next(each for each in (path, *path.parents) if each.exists())


def flag(name: str, purpose: str) -> Any:  # noqa: ANN401 - as typer.Option
    """Return an option without a value."""
    return typer.Option(name, help=purpose)


def file(purpose: str, *, metavar: str = "FILE", envvar: str | None = None) -> Any:  # noqa: ANN401
    """Return an option whose value is a path."""
    return typer.Option(parser=path_of, metavar=metavar, envvar=envvar, help=purpose)


def count(purpose: str, *names: str) -> Any:  # noqa: ANN401
    """Return an option whose value is 1 or more."""
    return typer.Option(*names, min=1, help=purpose)


def open_home(folder: Path | None, contract: Path | None = None) -> "Home":
    """Return the home of runs and models: the named one, or that of the contract or this folder.

    It is looked for as git looks for a repository: in the contract's folder (without a contract, in
    the current one), then above it. A new one is made in the current folder if the contract lies
    there or below, so that verbs without a contract find it, else beside the contract. Where it is
    not the current folder's, it is named first.
    """
    from perennial.runs import Home

    if folder is not None:
        return Home(folder.resolve())
    start = contract.resolve().parent if contract is not None else Path.cwd()
    there = (place / HOME_NAME for place in (start, *start.parents))
    new = Path.cwd() if Path.cwd() in start.parents else start
    found = next((place for place in there if _is_own(place)), new / HOME_NAME)
    if found.parent != Path.cwd():
        print(f"home: {found} (--home names another)", file=sys.stderr, flush=True)
    return Home(found)


def _is_own(home: Path) -> bool:
    """Whether it is a folder of this user: anybody may put one into a folder that all write to."""
    return home.is_dir() and home.stat().st_uid == os.getuid()


def split_place(place: str, version: str = "") -> tuple[str, str]:
    """Return model and version of `MODEL@2`, `MODEL 2` or `MODEL`.

    Raises:
        PerennialError: two versions are given, and they differ.
    """
    name, _, wanted = place.partition("@")
    if version and wanted and version != wanted:
        raise PerennialError(
            f"two versions were named: {wanted} in {place!r}, and {version}",
            action=f"name one: {name}@{wanted}",
        )
    return name, wanted or version


def place_of(text: str) -> str:
    """Return a model, or one with a version or alias behind `@`.

    Raises:
        typer.BadParameter: one of the two is empty.
    """
    if text and not all(text.split("@", maxsplit=1)):
        raise typer.BadParameter(f"{text!r} lacks the model before or the version behind @")
    return text


def require_no_empty(arguments: Sequence[str]) -> None:
    """Refuse an empty argument, which would be taken for one that was left out.

    Raises:
        PerennialError: there is one that is not the value of an option.
    """
    for before, own in pairwise(("", *arguments)):
        if not own.strip() and not before.startswith("-"):
            raise PerennialError(
                f"an argument is empty, behind {before!r}" if before else "an argument is empty",
                action="set the shell's variable that it comes from, or leave it out",
            )


def model_of(text: str) -> str:
    """Return the name of a model, for a verb that works on all of it.

    Raises:
        PerennialError: a version is named, which would be ignored.
    """
    name, _, version = text.partition("@")
    if version:
        raise PerennialError(
            f"this works on a model, not on one of its versions (got {text!r})",
            action=f"write {name}",
        )
    return text


def refuse_both(first: str, second: str, *given: object) -> None:
    """Refuse options that exclude each other.

    Raises:
        PerennialError: all are given.
    """
    if all(given):
        raise PerennialError(f"{first} and {second} exclude each other", action="remove one")


def print_lines(lines: Iterable[object]) -> int:
    """Print each line as soon as it is known; return the exit code of success."""
    for line in lines:
        print(line, flush=True)
    return 0


def print_json(record: "JsonValue") -> int:
    """Print a record as people pipe it on: indented, every character readable."""
    return print_lines([json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)])


HOME_NAME = ".perennial"
HomeFolder: TypeAlias = Annotated[
    Path | None,
    file(
        "store, MLflow database and runs (default: .perennial beside the contract or above it)",
        metavar="FOLDER",
        envvar="PERENNIAL_HOME",
    ),
]
ContractFile: TypeAlias = Annotated[
    Path, typer.Argument(parser=path_of, metavar="CONTRACT", help="training contract, a TOML file")
]
StudyFile: TypeAlias = Annotated[
    Path | None, file("TOML file with the section `study`; default: the contract's own")
]
ProfileFile: TypeAlias = Annotated[
    Path, file("TOML file of the environment", envvar="PERENNIAL_PROFILE")
]
ModelName: TypeAlias = Annotated[
    str, typer.Argument(parser=model_of, metavar="MODEL", help="the model's name")
]
ModelPlace: TypeAlias = Annotated[
    str,
    typer.Argument(parser=place_of, metavar="MODEL", help="a model, MODEL@2 or MODEL@champion"),
]
Reason: TypeAlias = Annotated[
    str, typer.Option(parser=text_of, metavar="TEXT", help="stored on the run and the version")
]
AsJson: TypeAlias = Annotated[bool, flag("--json", "print JSON")]
DryRun: TypeAlias = Annotated[bool, flag("--dry-run", "only print what would be done")]
AskedProfile: TypeAlias = Annotated[
    Path | None,
    file("profile of the cluster to ask (default: $PERENNIAL_PROFILE, unless a home is named)"),
]


def asked_profile(given: Path | None, home: Path | None) -> Path | None:
    """Return the profile of the cluster to ask; None for this machine."""
    named = os.environ.get("PERENNIAL_PROFILE")
    return given or (Path(named) if named and home is None else None)
