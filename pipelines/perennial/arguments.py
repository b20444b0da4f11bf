"""Arguments that several verbs share: what is out of range is refused before anything starts."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from perennial.contracts.errors import PerennialError

if TYPE_CHECKING:
    from perennial.runs import Home

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


def flag(name: str, purpose: str) -> Any:  # noqa: ANN401 - as typer.Option
    """Return an option without a value."""
    return typer.Option(name, help=purpose)


def file(purpose: str, *, metavar: str = "FILE", envvar: str | None = None) -> Any:  # noqa: ANN401
    """Return an option whose value is a path."""
    return typer.Option(parser=path_of, metavar=metavar, envvar=envvar, help=purpose)


def count(purpose: str, *names: str) -> Any:  # noqa: ANN401
    """Return an option whose value is 1 or more."""
    return typer.Option(*names, min=1, help=purpose)


def open_home(folder: Path) -> "Home":
    """Return the home of a machine's runs and models."""
    from perennial.runs import Home

    return Home(folder.resolve())


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


HOME = Path(".perennial")
HomeFolder: TypeAlias = Annotated[
    Path, file("store, MLflow database and runs", metavar="FOLDER", envvar="PERENNIAL_HOME")
]
ContractFile: TypeAlias = Annotated[
    Path, typer.Argument(parser=path_of, metavar="CONTRACT", help="training contract, a TOML file")
]
ProfileFile: TypeAlias = Annotated[
    Path, file("TOML file of the environment", envvar="PERENNIAL_PROFILE")
]
ModelName: TypeAlias = Annotated[str, typer.Argument(metavar="MODEL", help="the model's name")]
Reason: TypeAlias = Annotated[
    str, typer.Option(parser=text_of, metavar="TEXT", help="stored on the run and the version")
]
AsJson: TypeAlias = Annotated[bool, flag("--json", "print JSON")]
DryRun: TypeAlias = Annotated[bool, flag("--dry-run", "only print what would be done")]
