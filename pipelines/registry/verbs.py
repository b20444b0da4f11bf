"""The verbs of `perennial` about registered models: what they are, and which is champion."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from pipelines.runs import Home

DIFFERENT = 1  # the exit code of a training that gave other weights
PLACE = "MODEL, MODEL@3 or MODEL@champion; MODEL alone is its champion"


def models(options: argparse.Namespace) -> int:
    """List the registered models, or a model's versions, what they are worth and why promoted."""
    from pipelines.registry.catalogue import Catalogue
    from pipelines.registry.listing import model_lines, version_lines

    catalogue = Catalogue(_home(options))
    lines = version_lines(catalogue, options.model) if options.model else model_lines(catalogue)
    print("\n".join(lines))
    return 0


def compare(options: argparse.Namespace) -> int:
    """Say in what two versions differ: metrics, data, task, contract, origin."""
    from pipelines.registry.catalogue import Catalogue
    from pipelines.registry.comparison import comparison_lines

    catalogue = Catalogue(_home(options))
    first, second = (catalogue.find(place) for place in (options.place_a, options.place_b))
    print("\n".join(comparison_lines(catalogue.dossier(first), catalogue.dossier(second))))
    return 0


def explain(options: argparse.Namespace) -> int:
    """Say where a version comes from: code, data, seeds, trigger, verdict, parent, waivers."""
    from pipelines.registry.catalogue import Catalogue
    from pipelines.registry.explanation import explanation_lines, write_explanation

    catalogue = Catalogue(_home(options))
    dossier = catalogue.dossier(catalogue.find(options.place))
    print("\n".join(explanation_lines(dossier)))
    if options.out:
        write_explanation(dossier, options.out)
        print(f"\npage: {options.out}")
    return 0


def promote(options: argparse.Namespace) -> int:
    """Make a version champion, if the gate finds it better than the present one."""
    from pipelines.registry.catalogue import Catalogue
    from pipelines.registry.moves import Request, promote

    _find_code(options)
    request = Request(options.reason, options.force)
    print(promote(Catalogue(_home(options)), options.model, options.version, request))
    return 0


def rollback(options: argparse.Namespace) -> int:
    """Take the champion out of production; the version that it replaced is champion again."""
    from pipelines.registry.catalogue import Catalogue
    from pipelines.registry.moves import Request, rollback

    _find_code(options)
    request = Request(options.reason, options.force)
    print(rollback(Catalogue(_home(options)), options.model, request))
    return 0


def reproduce(options: argparse.Namespace) -> int:
    """Train a version again from what it carries, and compare the weights bit by bit."""
    # As the pipeline's steps have it; PyTorch, which reads it, is imported below.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from pipelines.registry.catalogue import Catalogue
    from pipelines.registry.reproduction import reproduce

    _find_code(options)
    catalogue = Catalogue(_home(options))
    version = catalogue.find(f"{options.model}@{options.version}")
    found = reproduce(catalogue.dossier(version), options.code)
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
    add(models, home).add_argument("model", nargs="?", default="", help="one model's versions")
    comparing = add(compare, home)
    comparing.add_argument("place_a", metavar="A", help=PLACE)
    comparing.add_argument("place_b", metavar="B", help=PLACE)
    explaining = add(explain, home)
    explaining.add_argument("place", metavar="VERSION", help=PLACE)
    explaining.add_argument("--out", type=Path, help="also write it as an HTML page")
    promoting, back, again = (add(verb, home) for verb in (promote, rollback, reproduce))
    for parser in (promoting, back, again):
        parser.add_argument("model", help="the model's name")
        parser.add_argument(
            "--code", type=Path, default=Path(), help="folder of the task's module (default: here)"
        )
    for moving in (promoting, back):
        moving.add_argument("--reason", required=True, help="why; it stands on the version")
        moving.add_argument("--force", action="store_true", help="even if it may make things worse")
    for parser in (promoting, again):
        parser.add_argument("version", help="a version's number")


def _find_code(options: argparse.Namespace) -> None:
    """No contract says here where the task's module lies."""
    folder = str(options.code.resolve())
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _home(options: argparse.Namespace) -> Home:
    return Home(options.home.resolve())
