"""The verbs of `perennial` about registered models: what they are, and which is champion."""

import argparse
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from perennial.arguments import path_of
from perennial.contracts.errors import PerennialError
from perennial.runs import Home

DIFFERENT = 1  # the exit code of a training that gave other weights
PLACE = "MODEL, MODEL@3 or MODEL@champion; MODEL alone is its champion"


def models(options: argparse.Namespace) -> int:
    """List the registered models, or a model's versions with metrics and promotions."""
    from perennial.registry_commands.catalogue import Catalogue
    from perennial.registry_commands.listing import model_lines, version_lines

    catalogue = Catalogue(_home(options))
    name = options.model
    _refuse_options(options)
    if options.repair:
        from perennial.registry_commands.repair import repair

        print(repair(catalogue, name, partial(_confirm, yes=options.yes), print))
        return 0
    if options.json:
        from perennial.registry_commands.records import as_json, models_record, versions_record

        print(as_json(versions_record(catalogue, name) if name else models_record(catalogue)))
        return 0
    _show(version_lines(catalogue, name) if name else model_lines(catalogue))
    return 0


def compare(options: argparse.Namespace) -> int:
    """Print how two versions differ: metrics, data, task, contract, origin."""
    from perennial.registry_commands.catalogue import Catalogue
    from perennial.registry_commands.comparison import comparison_lines

    catalogue = Catalogue(_home(options))
    first, second = (catalogue.find(place) for place in (options.place_a, options.place_b))
    version_records = (catalogue.version_record(first), catalogue.version_record(second))
    if options.json:
        from perennial.registry_commands.records import as_json, comparison_record

        print(as_json(comparison_record(*version_records)))
        return 0
    _show(comparison_lines(*version_records))
    return 0


def explain(options: argparse.Namespace) -> int:
    """Print where a version comes from: code, data, seeds, trigger, verdict, parent, waivers."""
    from perennial.registry_commands.catalogue import Catalogue
    from perennial.registry_commands.explanation import explanation_lines, write_explanation

    catalogue = Catalogue(_home(options))
    version_record = catalogue.version_record(catalogue.find(options.place))
    if options.out:
        write_explanation(version_record, options.out)
    if options.json:
        from perennial.registry_commands.records import as_json, explanation_record

        print(as_json(explanation_record(version_record)))
        return 0
    _show(explanation_lines(version_record))
    if options.out:
        print(f"\npage: {options.out}")
    return 0


def promote(options: argparse.Namespace) -> int:
    """Make a version champion, if the gate finds it better than the present one."""
    from perennial.registry_commands.alias_changes import Request, promote
    from perennial.registry_commands.catalogue import Catalogue

    _find_code(options.code)
    request = Request(options.reason, options.force)
    print(promote(Catalogue(_home(options)), options.model, options.version, request))
    return 0


def rollback(options: argparse.Namespace) -> int:
    """Take the champion out of production; the version that it replaced is champion again."""
    from perennial.registry_commands.alias_changes import Request, rollback
    from perennial.registry_commands.catalogue import Catalogue

    _find_code(options.code)
    request = Request(options.reason, options.force)
    print(rollback(Catalogue(_home(options)), options.model, request))
    return 0


def reproduce(options: argparse.Namespace) -> int:
    """Train a version again from what it carries, and compare the weights bit by bit."""
    # As the pipeline's steps have it; PyTorch, which reads it, is imported below.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from perennial.registry_commands import reproduction, sources
    from perennial.registry_commands.catalogue import Catalogue
    from perennial.registry_commands.training_record import training_record

    home = _home(options)
    catalogue = Catalogue(home)
    version_record = catalogue.version_record(catalogue.find(f"{options.model}@{options.version}"))
    data = options.data if "://" in options.data else str(Path(options.data).resolve())
    moved = ["--data", data] if options.data else []
    repository = options.repository or Path()
    folder = options.code or sources.find_training_sources(version_record, repository)
    if folder is None:
        more = [*moved, *(["--anyway"] if options.anyway else [])]
        again = ("reproduce", options.model, options.version, "--home", str(home.path), *more)
        say = partial(print, flush=True)
        return sources.run_in_checkout(version_record, sources.CheckoutRun(again, repository), say)
    _find_code(folder)
    record = training_record(catalogue, version_record)
    if moved:
        record = record.moved_to(data)
    found = reproduction.reproduce(record, folder, anyway=options.anyway)
    print("\n".join(found.lines()))
    return 0 if found.is_identical else DIFFERENT


def add_registry_verbs(
    add: Callable[..., argparse.ArgumentParser], home: argparse.ArgumentParser
) -> None:
    """Add the verbs and their options to the command line.

    Args:
        add: Adds a verb, with its parents.
        home: Holds `--home`.
    """
    reading = argparse.ArgumentParser(add_help=False)
    reading.add_argument("--json", action="store_true", help="for programs")
    listing = add(models, home, reading)
    listing.add_argument("model", nargs="?", default="", help="one model's versions")
    listing.add_argument(
        "--repair", action="store_true",
        help="compare MLflow's and the store's record of the model's champion, propose a repair "
        "and ask",
    )  # fmt: skip
    listing.add_argument("--yes", action="store_true", help="repair without asking")
    comparing = add(compare, home, reading)
    comparing.add_argument("place_a", metavar="A", help=PLACE)
    comparing.add_argument("place_b", metavar="B", help=PLACE)
    explaining = add(explain, home, reading)
    explaining.add_argument("place", metavar="VERSION", help=PLACE)
    explaining.add_argument("--out", type=path_of, help="also write it as an HTML page")
    promoting, back, again = (add(verb, home) for verb in (promote, rollback, reproduce))
    for parser in (promoting, back, again):
        parser.add_argument("model", help="the model's name")
    for moving in (promoting, back):
        moving.add_argument(
            "--code",
            type=path_of,
            default=Path(),
            help="folder of the task's module (default: here)",
        )
        moving.add_argument("--reason", required=True, help="reason, stored on the version")
        moving.add_argument("--force", action="store_true", help="skip the gate")
    for parser in (promoting, again):
        parser.add_argument("version", help="a version's number")
    _add_reproduce_options(again)


def _add_reproduce_options(parser: argparse.ArgumentParser) -> None:
    sources = parser.add_mutually_exclusive_group()
    sources.add_argument(
        "--repository", type=path_of,
        help="git repository that holds the version's commit (default: the one of this folder); "
        "it is only read",
    )  # fmt: skip
    sources.add_argument(
        "--code", type=path_of,
        help="folder of the task's module, taken as it is (default: the original sources)",
    )  # fmt: skip
    parser.add_argument(
        "--data", default="", help="where the dataset lies now, if it was moved; the same files"
    )
    parser.add_argument("--anyway", action="store_true", help="train even if a difference is known")


def _show(lines: Iterable[str]) -> None:
    """Print for people: as wide as their window, if they look at one; else a line is a line."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    print("\n".join(fitted(lines, columns)))


def fitted(lines: Iterable[str], columns: int) -> Iterator[str]:
    """Lines broken at words, what follows set in further; unbroken in a width of 0."""
    for line in lines:
        own = len(line) - len(line.lstrip(" "))
        if not columns or len(line) <= columns:
            yield line
            continue
        # Digests and paths stay whole: people copy them.
        yield from textwrap.wrap(
            line, columns, subsequent_indent=" " * (own + 4), break_long_words=False,
            break_on_hyphens=False, replace_whitespace=False, drop_whitespace=True,
        )  # fmt: skip


def _confirm(question: str, *, yes: bool) -> bool:
    """A person's answer; without a terminal there is nobody to ask."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise PerennialError(
            "cannot ask for confirmation: the input is not a terminal",
            evidence=f"the question is: {question}",
            action="add --yes after you have read the proposal",
        )
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def _refuse_options(options: argparse.Namespace) -> None:
    """Options of `models` that mean nothing without others."""
    if options.repair and (options.json or not options.model):
        raise PerennialError(
            "--repair needs the name of one model, and prints text only",
            evidence="--json was given" if options.json else "no model was named",
            action="`perennial models MODEL --repair`",
        )
    if options.yes and not options.repair:
        raise PerennialError(
            "--yes answers the question of --repair, which was not given",
            action="`perennial models MODEL --repair --yes`",
        )


def _find_code(folder: Path) -> None:
    """Make the task's module importable, whose folder no contract names here."""
    place = str(folder.resolve())
    if place not in sys.path:
        sys.path.insert(0, place)


def _home(options: argparse.Namespace) -> Home:
    return Home(options.home.resolve())
