"""Run `python examples/text/prepare.py OUT --months 1-6` to write documents of installed libraries.

Each call adds the monthly Parquet partitions that OUT lacks and leaves the others alone, so calling
again with more months plays the arrival of new data. One row is one paragraph of prose out of the
docstrings of numpy and scipy, for six months, and of pandas, for three: another subject in another
house style, as when a stream of documents gets a new source.

The text is that of the installed packages (BSD licences), read from their source files: nothing is
imported and nothing is downloaded. Other versions of them give other documents. When a paragraph
arrives is made up: a library's paragraphs come in an order drawn by hash, evenly over its months.
"""

import argparse
import ast
import hashlib
import importlib.util
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

import polars as pl

YEAR = 2025
# Libraries that share months, and the months that they share.
SOURCES = ((("numpy", "scipy"), range(1, 7)), (("pandas",), range(7, 10)))
SHORTEST = 40  # characters; below are headings and one-word answers
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def write_months(out: Path, months: Iterable[int]) -> list[Path]:
    """Add the missing partitions `out/month=2025-MM/documents.parquet`.

    The same month always has the same bytes under the same packages, and a partition appears whole
    or not at all.

    Args:
        out: Folder of the data set; made if missing.
        months: Months of 2025, 1 to 9.

    Returns:
        The partitions written by this call, oldest first.

    Raises:
        ValueError: If a month is not in 1 to 9.
    """
    wanted = sorted(set(months))
    if outside := [month for month in wanted if not 1 <= month <= SOURCES[-1][1][-1]]:
        raise ValueError(f"months must lie in 1 to {SOURCES[-1][1][-1]}, got {outside}")
    paths = {month: out / f"month={YEAR}-{month:02}" / "documents.parquet" for month in wanted}
    missing = {month: path for month, path in paths.items() if not path.exists()}
    for libraries, arrival in SOURCES:
        if not set(missing).intersection(arrival):
            continue
        documents = build_rows(libraries, arrival)
        for month in set(missing).intersection(arrival):
            path = missing[month]
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".tmp")
            rows = documents.filter(pl.col("arrived").dt.month() == month)
            rows.write_parquet(partial, compression="zstd")
            partial.replace(path)
    return list(missing.values())


def build_rows(libraries: Iterable[str], months: range) -> pl.DataFrame:
    """Return each different paragraph once, in order of arrival."""
    named = [(name, *each) for name in libraries for each in paragraphs(name)]
    rows = pl.DataFrame(named, schema=["library", "document_id", "text"], orient="row")
    rows = rows.unique("text", keep="first", maintain_order=True)
    drawn = [hashlib.blake2b(text.encode()).hexdigest() for text in rows["text"]]
    rows = rows.with_columns(pl.Series("drawn", drawn)).sort("drawn").drop("drawn")
    start, end = datetime(YEAR, months[0], 1), datetime(YEAR, months[-1] + 1, 1)
    step = (end - start) / rows.height
    arrived = [(start + index * step).replace(microsecond=0) for index in range(rows.height)]
    return rows.with_columns(arrived=pl.Series(arrived, dtype=pl.Datetime("us")))


def paragraphs(library: str) -> Iterator[tuple[str, str]]:
    """Return the paragraphs of prose in a package's docstrings, each with its own name."""
    spec = importlib.util.find_spec(library)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"install {library} to write the example's data")
    root = Path(spec.submodule_search_locations[0])
    for file in sorted(root.rglob("*.py")):
        module = ".".join([library, *file.relative_to(root).with_suffix("").parts])
        if "tests" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, DOCUMENTED):
                line = getattr(node, "lineno", 0)
                for number, text in enumerate(_prose(ast.get_docstring(node) or "")):
                    yield f"{module}:{line}#{number}", text


def _prose(docstring: str) -> Iterator[str]:
    """Return paragraphs without examples, tables and headings."""
    for paragraph in docstring.split("\n\n"):
        text = "\n".join(line.strip() for line in paragraph.strip().splitlines())
        if len(text) >= SHORTEST and not any(mark in text for mark in (">>>", "---", "===")):
            yield text


def _month_range(text: str) -> range:
    """Return the months of `3` or `1-3`."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> None:
    """Write the asked months and print the partitions added."""
    parser = argparse.ArgumentParser(description="Write monthly partitions of documents.")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the data set")
    parser.add_argument("--months", type=_month_range, default="1-9", help="such as 3 or 1-3")
    arguments = parser.parse_args()
    for path in write_months(arguments.out, arguments.months):
        print(path)


if __name__ == "__main__":
    main()
