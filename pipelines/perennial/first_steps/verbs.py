"""Verbs of the first hour: is the machine ready, and a first contract for one's own data."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from perennial.arguments import FAILED, ContractFile, HomeFolder, file, open_home, print_lines

DataFolder = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        help="Parquet, CSV or JSON file; folder of them, of .txt files, of pictures by class",
    ),
]


def init(  # noqa: PLR0917 - typer orders options by it
    kind: Annotated[
        Literal["table", "image", "text", "custom"],
        typer.Argument(help="of the data; `custom` also writes a task, to change as you like"),
    ],
    data: DataFolder,
    label: Annotated[str, typer.Option(metavar="COLUMN", help="the column to predict")] = "",
    time: Annotated[
        str, typer.Option(metavar="COLUMN", help="when the prediction is needed, or `none`")
    ] = "",
    ids: Annotated[
        list[str] | None, typer.Option("--id", metavar="COLUMN", help="identifies a row")
    ] = None,
    name: Annotated[str, typer.Option(help="the model's name (default: the data's)")] = "",
    *,
    out: Annotated[Path, file("folder of the contract", metavar="FOLDER")] = Path(),
) -> int:
    """Write a first contract for your own data, and say what to run next; overwrites nothing."""
    from perennial.first_steps.first_contract import (
        CONTRACT_FILE,
        candidate_labels,
        write_first_contract,
    )

    is_asked = not label and kind != "text" and sys.stdin.isatty()
    if is_asked and (columns := candidate_labels(kind, data)):
        print(f"columns: {', '.join(columns)}")
        label = typer.prompt("which column is to be predicted?", default=columns[-1])
    print_lines(
        write_first_contract(kind, data, out, label=label, time=time, ids=ids or (), name=name)
    )
    contract = shlex.quote(str(out / CONTRACT_FILE))
    return print_lines(
        [
            "next:",
            f"  perennial check {contract}     # what it means, and what stands in the way",
            f"  perennial sanity {contract}    # silent bugs, before anything trains",
            f"  perennial run {contract}       # trains, evaluates, registers",
        ]
    )


def import_(
    contract: ContractFile,
    data: DataFolder,
    name: Annotated[
        str, typer.Option(help="of the new partition (default: the file's), without .parquet")
    ] = "",
) -> int:
    """Append rows to a contract's dataset, in its columns and types; replaces nothing."""
    from perennial.first_steps.import_rows import import_rows

    return print_lines(import_rows(contract, data, name))


def schema(out: Annotated[Path | None, file("write it here")] = None) -> int:
    """Print the contract's JSON schema, with which an editor completes and checks it."""
    from perennial.contracts.artifact import write_atomically
    from perennial.first_steps.first_contract import schema_text

    if out is None:
        print(schema_text(), end="")
        return 0
    write_atomically(out, schema_text().encode())
    return print_lines([f"wrote {out}; name it in a contract's first line:", f"#:schema ./{out}"])


def doctor(
    home: HomeFolder = None,
    profile: Annotated[
        Path | None, file("profile of a cluster to ask, too", envvar="PERENNIAL_PROFILE")
    ] = None,
) -> int:
    """Check whether this machine has what Perennial needs; exit code 1 if something is missing."""
    from perennial.first_steps.doctor import examine

    failed = 0
    for finding in examine(open_home(home), profile):
        print_lines(finding.lines())
        failed += finding.is_good is False
    return print_lines([f"{failed} to fix" if failed else "ready"]) or (FAILED if failed else 0)
