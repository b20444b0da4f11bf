"""The verbs of `perennial` about registered models: what they are, and which is champion."""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from perennial.arguments import (
    AsJson,
    HomeFolder,
    ModelPlace,
    Reason,
    file,
    flag,
    model_of,
    open_home,
    print_json,
    split_place,
)
from perennial.contracts.errors import PerennialError

DIFFERENT = 1  # the exit code of a training that gave other weights
PLACE = "MODEL, MODEL@3 or MODEL@champion; MODEL alone is its champion"

Version: TypeAlias = Annotated[
    str, typer.Argument(metavar="VERSION", help="a version's number or alias, unless in MODEL@2")
]
CodeFolder: TypeAlias = Annotated[Path, file("folder of the task's module", metavar="FOLDER")]
SkipGate: TypeAlias = Annotated[bool, flag("--force", "skip the gate, and the check that it loads")]


def models(
    model: ModelPlace = "",
    home: HomeFolder = None,
    *,
    json: AsJson = False,
    repair: Annotated[
        bool, flag("--repair", "propose a repair of the champion's records, and ask")
    ] = False,
    yes: Annotated[bool, flag("--yes", "repair without asking")] = False,
) -> int:
    """List the registered models, or a model's versions with metrics and promotions."""
    from perennial.registry_commands import listing
    from perennial.registry_commands.catalogue import Catalogue

    if repair and (json or not model):
        raise PerennialError(
            "--repair needs the name of one model, and prints text only",
            evidence="--json was given" if json else "no model was named",
            action="`perennial models MODEL --repair`",
        )
    if yes and not repair:
        raise PerennialError(
            "--yes answers the question of --repair, which was not given",
            action="`perennial models MODEL --repair --yes`",
        )
    catalogue = Catalogue(open_home(home))
    name, version = split_place(model)
    if repair:
        from perennial.registry_commands import champion

        print(champion.repair(catalogue, model_of(model), partial(_confirm, yes=yes), print))
    elif json:
        found = listing.versions_record(catalogue, name, version) if model else None
        print_json(found or listing.models_record(catalogue))
    elif model:
        _show(listing.version_lines(catalogue, name, version))
    else:
        _show(listing.model_lines(catalogue))
    return 0


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help=PLACE)],
    second: Annotated[str, typer.Argument(metavar="B", help=PLACE)],
    home: HomeFolder = None,
    *,
    json: AsJson = False,
) -> int:
    """Print how two versions differ: metrics, data, task, contract, origin."""
    from perennial.registry_commands.catalogue import Catalogue
    from perennial.registry_commands.comparison import comparison_lines, comparison_record

    catalogue = Catalogue(open_home(home))
    versions = [catalogue.find(place) for place in (first, second)]
    records = [catalogue.version_record(version) for version in versions]
    if json:
        print_json(comparison_record(*records))
    else:
        _show(comparison_lines(*records))
    return 0


def explain(
    version: Annotated[str, typer.Argument(metavar="VERSION", help=PLACE)],
    home: HomeFolder = None,
    out: Annotated[Path | None, file("also write it as an HTML page")] = None,
    *,
    json: AsJson = False,
) -> int:
    """Print where a version comes from: code, data, seeds, trigger, verdict, parent, waivers."""
    from perennial.registry_commands import explanation
    from perennial.registry_commands.catalogue import Catalogue

    catalogue = Catalogue(open_home(home))
    record = catalogue.version_record(catalogue.find(version))
    if out:
        explanation.write_explanation(record, out)
    if json:
        return print_json(explanation.explanation_record(record))
    _show(explanation.explanation_lines(record))
    if out:
        print(f"\npage: {out}")
    return 0


def promote(
    model: ModelPlace,
    reason: Reason,
    version: Version = "",
    home: HomeFolder = None,
    code: CodeFolder = Path(),
    *,
    force: SkipGate = False,
) -> int:
    """Make a version champion, if the gate finds it better than the present one."""
    from perennial.registry_commands import champion
    from perennial.registry_commands.catalogue import Catalogue

    name, number = _named_version("promote", model, version)
    _find_code(code)
    print(champion.promote(Catalogue(open_home(home)), name, number, reason, force=force))
    return 0


def rollback(
    model: ModelPlace,
    reason: Reason,
    home: HomeFolder = None,
    code: CodeFolder = Path(),
    *,
    force: SkipGate = False,
) -> int:
    """Take the champion out of production; the version that it replaced is champion again."""
    from perennial.registry_commands import champion
    from perennial.registry_commands.catalogue import Catalogue

    _find_code(code)
    print(champion.rollback(Catalogue(open_home(home)), model, reason, force=force))
    return 0


def reproduce(
    model: ModelPlace,
    version: Version = "",
    home: HomeFolder = None,
    code: Annotated[
        Path | None,
        file("folder of the task's module, as in a checkout of its commit", metavar="FOLDER"),
    ] = None,
    *,
    data: Annotated[str, typer.Option(metavar="URI", help="where the same files are now")] = "",
    anyway: Annotated[bool, flag("--anyway", "train even if a difference is known")] = False,
) -> int:
    """Train a version again from what it carries, and compare the weights bit by bit."""
    # As the pipeline's steps have it; PyTorch, which reads it, is imported below.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from perennial.registry_commands import reproduction
    from perennial.registry_commands.catalogue import Catalogue

    name, number = _named_version("reproduce", model, version)
    catalogue = Catalogue(open_home(home))
    version_record = catalogue.version_record(catalogue.find(f"{name}@{number}"))
    record = reproduction.training_record(catalogue, version_record)
    if data:
        record = record.moved_to(data if "://" in data else str(Path(data).resolve()))
    folder = code or reproduction.find_code(record, Path())
    _find_code(folder)
    found = reproduction.reproduce(record, folder, anyway=anyway)
    print("\n".join(found.lines()))
    return 0 if found.is_identical else DIFFERENT


def _show(lines: Iterable[str]) -> None:
    """Print for people: as wide as their window, if they look at one; else a line is a line."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    print("\n".join(fitted(lines, columns)))


def fitted(lines: Iterable[str], columns: int) -> Iterator[str]:
    """Yield lines broken at words, what follows set in further; unbroken in a width of 0."""
    for line in lines:
        own = len(line) - len(line.lstrip(" "))
        if not columns or len(line) <= columns:
            yield line
            continue
        # Digests and paths stay whole: people copy them.
        yield from textwrap.wrap(
            line,
            columns,
            subsequent_indent=" " * (own + 4),
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
            drop_whitespace=True,
        )


def _named_version(verb: str, place: str, version: str) -> tuple[str, str]:
    """Return model and version.

    Raises:
        PerennialError: no version is named, or two are.
    """
    name, number = split_place(place, version)
    if not number:
        raise PerennialError(
            f"`{verb}` needs a version", action=f"write `perennial {verb} {name}@2`, for example"
        )
    return name, number


def _confirm(question: str, *, yes: bool) -> bool:
    """Return a person's answer; without a terminal there is nobody to ask."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise PerennialError(
            "cannot ask for confirmation: the input is not a terminal",
            evidence=f"the question is: {question}",
            action="add --yes after you have read the proposal",
        )
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def _find_code(folder: Path) -> None:
    """Make the task's module importable, whose folder no contract names here."""
    place = str(folder.resolve())
    if place not in sys.path:
        sys.path.insert(0, place)
