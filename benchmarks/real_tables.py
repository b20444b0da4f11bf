"""Real tables: what the first two commands of a newcomer answer, `perennial init` and `run`.

    python -m benchmarks.real_tables FOLDER --first 0 --most 60

FOLDER holds CSV files, below it at any depth; the record is of the data sets of R that the package
pydataset 0.2.0 unpacks. Of each table with 400 to 30,000 rows and 4 to 60 columns one column is
predicted: the last that has 2 to 8 texts, 2 to 6 whole numbers, or more than 30 numbers, none of
them missing. Nothing is chosen by a person, so leaks are real ones: blocks are read and judged.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from shutil import copyfile

import polars as pl

from benchmarks.record import keep_page

ROWS, COLUMNS = range(400, 30_001), range(4, 61)
FEWEST_OF_A_CLASS = 20
COMMAND = "import sys; from perennial.cli import main; sys.exit(main())"


@dataclass(frozen=True)
class Table:
    """A CSV file, and the column that is predicted."""

    file: Path
    label: str
    rows: int

    @property
    def name(self) -> str:
        """Return a model's name."""
        return "t-" + re.sub("[^a-z0-9]+", "-", self.file.stem.lower()).strip("-")


def main() -> None:
    """Run the tables and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--first", type=int, default=0, help="tables that are left out before")
    parser.add_argument("--most", type=int, default=60)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    tables = list(find_tables(arguments.folder))
    random.Random(4).shuffle(tables)
    chosen = tables[arguments.first : arguments.first + arguments.most]
    rows = []
    for table in chosen:
        answer = run_table(table)
        rows.append(f"| {table.name} | {table.label} | {table.rows:,} | {answer} |")
        print(rows[-1], flush=True)
    if arguments.write:
        keep_page("real_tables.md", page(rows))


def find_tables(folder: Path) -> Iterator[Table]:
    """Yield the tables of a folder that have a column to predict, each name once."""
    names = set()
    for file in sorted(folder.rglob("*.csv"), key=str):
        try:
            rows = pl.read_csv(file, null_values=["NA", ""], infer_schema_length=None)
        except pl.exceptions.PolarsError:
            continue
        labels = [column.name for column in rows.get_columns()[1:] if is_label(column)]
        if rows.height in ROWS and rows.width in COLUMNS and labels:
            table = Table(file, labels[-1], rows.height)
            if table.name not in names:
                names.add(table.name)
                yield table


def is_label(column: pl.Series) -> bool:
    """Whether a column is a class of enough rows each, or an amount."""
    if column.null_count():
        return False
    values = column.n_unique()
    most = 8 if column.dtype == pl.String else 6 if column.dtype.is_integer() else 1
    if 2 <= values <= most:
        return int(column.unique_counts().min()) >= FEWEST_OF_A_CLASS  # type: ignore[arg-type]
    return column.dtype.is_numeric() and values > 30


def run_table(table: Table) -> str:
    """Return `champion`, `not promoted`, or the step that ended the run and its evidence."""
    with tempfile.TemporaryDirectory() as folder:
        copyfile(table.file, Path(folder) / "data.csv")
        for arguments in (
            ["init", "table", "data.csv", "--label", table.label, "--name", table.name],
            ["run", "contract.toml"],
        ):
            done = subprocess.run(
                [sys.executable, "-c", COMMAND, *arguments],
                cwd=folder, capture_output=True, text=True, check=False,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            printed = done.stdout + done.stderr
            if done.returncode:
                step = re.search(r"^(\w+) failed$", printed, re.MULTILINE)
                evidence = re.search(r"^  evidence: (.*)$", printed, re.MULTILINE)
                shown = evidence[1][:160] if evidence else printed[-160:]
                return f"{step[1] if step else arguments[0]}: {shown}".replace("|", "/")
    return "champion" if "is champion" in printed else "not promoted"


def page(rows: list[str]) -> str:
    """Return the page of all tables."""
    answers = [row.split("|")[4].strip() for row in rows]
    ended = {answer: answers.count(answer) for answer in ("champion", "not promoted")}
    return "\n".join(
        [
            "# Real tables, without code",
            "",
            f"{date.today()}. `python -m benchmarks.real_tables FOLDER --first N --most "
            f"{len(rows)} --write`: of {len(rows)} tables {ended['champion']} ended with a "
            f"champion, {ended['not promoted']} with a model that the gate did not promote, "
            f"{len(rows) - sum(ended.values())} at a step.",
            "",
            "| table | label | rows | answer |",
            "|---|---|---|---|",
            *rows,
        ]
    )


if __name__ == "__main__":
    main()
