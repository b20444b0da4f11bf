"""Types of the command line's arguments: what is out of range is refused before anything starts."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from perennial.check_skeleton.registry import check_names


def path_of(text: str) -> Path:
    """A path that the operating system can have.

    Raises:
        argparse.ArgumentTypeError: it is empty or holds a NUL character.
    """
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not a path")
    return Path(text)


def integer_from(least: int) -> Callable[[str], int]:
    """Integers of at least this; argparse shows the error."""

    def integer(text: str) -> int:
        if len(text) > 18 or not text.strip().lstrip("+-").isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text[:20]!r} is not an integer from {least} on")
        return int(text)

    return integer


def hours_of(text: str) -> float:
    """A finite number of hours.

    Raises:
        argparse.ArgumentTypeError: it is negative, infinite or not a number.
    """
    try:
        hours = float(text)
    except ValueError:
        hours = math.nan
    if not 0.0 <= hours <= 87_600.0:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is not a number of hours, 0 to ten years")
    return hours


def add_reap_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reap`."""
    parser.add_argument("--namespace", default="", help="default: the pod's own, or `default`")
    parser.add_argument(
        "--grace-hours", type=hours_of, default=24.0, help="how long what has ended is kept (24)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be deleted")


def add_probe_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `probe`."""
    parser.add_argument(
        "--max", type=integer_from(1), help="batch-size: largest to try (default: 8192)"
    )
    parser.add_argument(
        "--out", type=path_of, help="lr: the picture's file (default: probe-lr.html)"
    )


def add_replay_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `run`."""
    parser.add_argument(
        "--replay", action="store_true", help="let the dataset's partitions arrive one by one"
    )
    parser.add_argument(
        "--first", type=integer_from(1), help="partitions that start a replay (default: 3)"
    )
    parser.add_argument(
        "--until", type=integer_from(1), help="partitions after which a replay ends (default: all)"
    )


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `report`."""
    parser.add_argument("run", nargs="?", default="", help="a run's id (default: the newest)")
    parser.add_argument("--no-open", action="store_true", help="print the path only")


def add_sanity_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `sanity`."""
    parser.add_argument(
        "--only", nargs="+", action="extend", choices=check_names(), metavar="CHECK", default=[],
        help="these checks, and those they depend on; the names are in the report",
    )  # fmt: skip
    parser.add_argument("--out", type=path_of, help="copy the report here")
    parser.add_argument("--new", action="store_true", help="measure again if nothing changed")
