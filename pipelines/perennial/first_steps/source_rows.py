"""Rows of the user's own files: tables, texts and pictures in the layouts that people keep."""

import codecs
import csv
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from io import BytesIO, TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import IO, Any

import polars as pl

from perennial.contracts.errors import BadDataError, PerennialError
from perennial.data.parquet_files import LIBRARY_ERRORS
from perennial.first_steps.draft import ROW_ID, Kind
from perennial.first_steps.source_pictures import (
    pictures_by_class,
    pixels_as_pictures,
    with_pictures,
)

PARQUET, CSV = (".parquet", ".parq", ".pq"), (".csv", ".tsv")
JSON = (".jsonl", ".ndjson", ".json")
ENDINGS = (PARQUET, CSV, JSON)
TEXTS = (".txt",)
LABEL, TEXT = "label", "text"
WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Rows that are looked at to tell whether quotes quote.
ROWS_OF_QUOTES = 20_000
PIECE = 1 << 20  # bytes
LONGEST_CELL = 1 << 30
FEWEST_YEARS, MONTHS = 100, 12  # smaller years were written with two digits
FORMS_OF_DATA = (
    "name a Parquet, CSV or JSON Lines file, or a folder of them; for `text` also .txt files, and "
    "for `image` pictures, in a folder for each class"
)

# What pandas and R write for a missing value.
MISSING = ("NA", "NaN", "nan", "null")
Source = tuple[pl.LazyFrame, list[str]]


@contextmanager
def readable_source(data: Path) -> Iterator[None]:
    """Explain what polars raises about the user's files, here or where rows are collected.

    Raises:
        BadDataError: a file cannot be read.
    """
    try:
        yield
    except (*LIBRARY_ERRORS, UnicodeError) as error:
        raise BadDataError(
            f"cannot read {data}",
            evidence=f"{type(error).__name__}: {(str(error).splitlines() or ['empty'])[0]}",
            action="correct it, or write it as Parquet; CSV files are UTF-8 with a header, and "
            "JSON has no NaN",
        ) from error


def scan_rows(
    kind: Kind, data: Path, texts: Collection[str] = (), classes: Collection[str] = ()
) -> Source:
    """Return the rows of a file, or of a folder of files of one kind, and notes for people.

    Columns named in `texts` stay as they are written, such as the code 007. `classes` are those of
    a dataset that pictures are added to.

    Raises:
        PerennialError: there is none.
    """
    if not data.exists():
        raise PerennialError(f"{data} does not exist", action=FORMS_OF_DATA)
    files = sorted(path for path in data.rglob("*") if path.is_file()) if data.is_dir() else [data]
    files = [path for path in files if not path.name.startswith(".")]
    if kind == "image" and data.is_dir() and (found := pictures_by_class(data, files, classes)):
        return found
    for endings in ENDINGS:
        chosen = [path for path in files if path.name.lower().endswith(endings)]
        if chosen and endings == PARQUET:
            return pl.scan_parquet(chosen), []
        if chosen and endings == JSON:
            return _scan_json(chosen), []
        if chosen:
            table, notes = _scan_csv(chosen, texts)
            if kind != "image":
                return table, notes
            table = with_pictures(table, chosen[0].parent, data)
            return pixels_as_pictures(table, notes), notes
    chosen = [path for path in files if path.name.lower().endswith(TEXTS)]
    if chosen and (kind == "text" or data.is_dir()):
        return _read_texts(chosen)
    raise PerennialError(
        f"{data} holds no data that can be read",
        evidence=f"{len(files)} files, none of which ends in {', '.join(sum(ENDINGS, ()))}",
        action=FORMS_OF_DATA,
    )


def _scan_json(files: Sequence[Path]) -> pl.LazyFrame:
    """Return the rows of JSON Lines, or of files that are one list of rows."""
    with files[0].open("rb") as content:
        is_list = content.read(64).lstrip().startswith(b"[")
    if is_list:
        rows = [pl.read_json(file, infer_schema_length=None) for file in files]
        table = pl.concat(rows, how="diagonal_relaxed").lazy()
    else:
        table = pl.scan_ndjson(list(files), infer_schema_length=None)
    return table.with_columns(pl.col(pl.Int128).cast(pl.String))


def _scan_csv(files: list[Path], texts: Collection[str]) -> Source:
    notes: list[str] = []
    sources: list[Path] | list[bytes] = files
    if not all(map(_is_readable, files)):
        sources = [_in_utf8(file, notes) for file in files]
    with _lines_of(sources[0]) as lines:
        separator = max(",;\t|", key=next(lines, "").count)
    quote: str | None = '"'
    if any(_has_quotes_as_text(source, separator) for source in sources):
        quote = None
        notes.append("read: quotes are taken for text: they do not enclose whole cells")
    for source in sources:
        notes += _find_short_rows(source, separator, quote)
    # By default Polars decides on a column's type by its first 100 rows.
    scan = partial(
        pl.scan_csv, sources, separator=separator, quote_char=quote, try_parse_dates=True,
        infer_schema_length=None, null_values=["", *MISSING],
    )  # fmt: skip
    table = scan()
    schema = table.collect_schema()
    names = schema.names()
    # Parquet has no whole numbers of more than 64 bits.
    long = {name for name, dtype in schema.items() if dtype == pl.Int128}
    unread = long | set(texts) | _doubtful_dates(table)
    if kept := {name: pl.String for name in names if name in unread}:
        table = scan(schema_overrides=kept)
    written = scan(null_values=[""], schema_overrides=dict.fromkeys(names, pl.String))
    notes += _find_missing_words(table, written)
    if len(names) > 1:
        table = table.filter(~pl.all_horizontal(pl.all().is_null()))
    # pandas writes its index as a first column without a name.
    table = table.rename({old: ROW_ID for old in names[:1] if not old.strip()})
    return _without_nameless(table), notes


def _find_short_rows(source: Path | bytes, separator: str, quote: str | None) -> list[str]:
    """Return a note on rows with fewer cells than the header, whose last ones are missing.

    Raises:
        BadDataError: the last row is one: the file is cut off.
    """
    dialect: dict[str, Any] = {"quoting": csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE}
    # Texts may be longer than what the reader, by its usual limit, takes for a lost quote.
    usual = csv.field_size_limit(LONGEST_CELL)
    try:
        with _lines_of(source) as lines:
            rows = csv.reader(lines, delimiter=separator, **dialect)
            width, count, last = len(next(rows, [])), 0, list[str]()
            for row in rows:
                if row:
                    last = row
                    count += len(row) < width
    finally:
        csv.field_size_limit(usual)
    if not count:
        return []
    if len(last) < width:
        name = source.name if isinstance(source, Path) else "the file"
        raise BadDataError(
            f"{name} is cut off: its last row has {len(last)} cells, the header {width}",
            evidence=f"the row is {separator.join(last)[:80]!r}",
            action="copy it again; a cell without a value is empty, but its separator is there",
        )
    return [f"read: {count:,} rows have fewer cells than the header; the others are missing"]


def _find_missing_words(table: pl.LazyFrame, written: pl.LazyFrame) -> list[str]:
    """Return a note for each column of texts in which words count as missing values.

    `NA` is North America, too, or Namibia, or a surname.
    """
    names = [name for name, dtype in table.collect_schema().items() if dtype == pl.String]
    marks = [
        (pl.col(name) == mark).sum().alias(f"{mark} {name}") for name in names for mark in MISSING
    ]
    if not marks:
        return []
    counts = written.select(marks).collect().row(0, named=True)
    return [
        f"read: {mark!r} in {name!r} is a missing value, {count:,} times; if it is a name, write "
        "another one"
        for name in names
        for mark in MISSING
        if (count := counts[f"{mark} {name}"])
    ]


def _doubtful_dates(table: pl.LazyFrame) -> set[str]:
    """Return the columns of dates that Polars may have read wrongly.

    It reads the year 93 as it is written, and the day first wherever 1/2/2025 has two readings.
    """
    schema = table.collect_schema()
    times = [name for name, dtype in schema.items() if dtype in (pl.Date, pl.Datetime("us"))]
    if not times:
        return set()
    column = pl.col(times).dt
    is_doubtful = (column.year().min() < FEWEST_YEARS) | (column.day().max() <= MONTHS)
    found = table.select(is_doubtful).collect().row(0, named=True)
    return {name for name, doubtful in found.items() if doubtful}


def _without_nameless(table: pl.LazyFrame) -> pl.LazyFrame:
    """Drop columns without name and values, as spreadsheets leave them; name the others."""
    names = table.collect_schema().names()
    nameless = [name for name in names if re.fullmatch(r"\s*(_duplicated_\d+)?", name)]
    if not nameless:
        return table
    counts = table.select(pl.col(nameless).count()).collect().row(0, named=True)
    table = table.drop([name for name in nameless if not counts[name]])
    return table.rename(
        {name: f"column_{names.index(name) + 1}" for name in nameless if counts[name]}
    )


def _is_readable(file: Path) -> bool:
    """Whether Polars reads a file: text in UTF-8 with lines that end as they do today.

    What is no text is left to Polars, which reports it.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    with file.open("rb") as content:
        begin = part = content.read(PIECE)
        if b"\0" in begin and not begin.startswith(WIDE):
            return True
        if b"\r" in begin and b"\n" not in begin:
            return False
        try:
            while part:
                decoder.decode(part)
                part = content.read(PIECE)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return True


def _in_utf8(file: Path, notes: list[str]) -> bytes:
    """Return a file's content in UTF-8, of the codes that spreadsheets write."""
    content = file.read_bytes()
    # Five bytes have no letter in Windows-1252; each has one in Latin 1.
    for code in ("utf-16",) if content.startswith(WIDE) else ("utf-8", "cp1252", "latin-1"):
        with suppress(UnicodeDecodeError):
            text = content.decode(code)
            break
    else:
        raise BadDataError(
            f"{file} is cut off, or no text", evidence=f"it is not {code}", action="write it again"
        )
    if code != "utf-8":
        shown = re.findall(r".{0,12}[^\x00-\x7f].{0,12}", text)[:1]
        notes.append(f"read: {file.name!r} as {code}, as it is not UTF-8; is it right? {shown}")
    # Old Macs ended lines with \r alone.
    return (text if "\n" in text else text.replace("\r", "\n")).encode()


def _lines_of(source: Path | bytes) -> IO[str]:
    if isinstance(source, bytes):
        return TextIOWrapper(BytesIO(source), encoding="utf-8-sig", newline="")
    return source.open(encoding="utf-8-sig", errors="replace", newline="")


def _has_quotes_as_text(source: Path | bytes, separator: str) -> bool:
    """Whether quotes are part of cells that can be separated without them.

    A writer that encloses cells in quotes does so with each cell that has one.
    """
    plain = _read_cells(source, {"delimiter": separator, "quoting": csv.QUOTE_NONE})
    enclosed = _read_cells(source, {"delimiter": separator, "strict": True})
    if not plain:
        return False
    has_open = any(
        '"' in cell and not (cell.startswith('"') and cell.endswith('"'))
        for row in plain
        for cell in row
    )
    return not enclosed or (has_open and len(enclosed) == len(plain))


def _read_cells(source: Path | bytes, dialect: dict[str, Any]) -> list[list[str]]:
    """Return the first rows; none if they have different numbers of cells."""
    with _lines_of(source) as lines:
        try:
            rows = list(islice(csv.reader(lines, **dialect), ROWS_OF_QUOTES))
        except csv.Error:
            return []
    return rows if len({len(row) for row in rows if row}) == 1 else []


def _read_texts(files: Sequence[Path]) -> Source:
    """Return the texts of files, each with its folder as label, or the paragraphs of them."""
    contents = [file.read_bytes().decode("utf-8", errors="replace") for file in files]
    folders = [file.parent.name for file in files]
    if len(set(folders)) > 1:
        table = pl.DataFrame({TEXT: contents, LABEL: folders, "file": [f.name for f in files]})
        return table.lazy(), [f"read: {len(files):,} files, each with its folder as {LABEL!r}"]
    lines = (text.replace("\r\n", "\n") for text in contents)
    paragraphs = [part.strip() for text in lines for part in text.split("\n\n")]
    table = pl.DataFrame({TEXT: [part for part in paragraphs if part]}, schema={TEXT: pl.String})
    return table.lazy(), ["read: each paragraph, up to an empty line, is a row"]
