"""The verbs of `perennial` about registered models: what they are, and which is champion."""

import argparse
from collections.abc import Callable
from pathlib import Path

from pipelines.runs import Home

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


def _home(options: argparse.Namespace) -> Home:
    return Home(options.home.resolve())
