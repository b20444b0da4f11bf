"""Rows of files: reads Parquet, CSV, JSON Lines, and folders of pictures, as they are."""

from codecs import BOM_UTF16_BE, BOM_UTF16_LE, getincrementaldecoder
from collections.abc import Collection
from functools import partial
from pathlib import Path

import polars as pl

from perennial.contracts.errors import BadDataError, PerennialError
from perennial.first_steps.draft import Kind

PARQUET, CSV = (".parquet", ".parq", ".pq"), (".csv", ".tsv")
JSON_LINES = (".jsonl", ".ndjson")
ENDINGS = (PARQUET, CSV, JSON_LINES)
PICTURES = (".png", ".jpg", ".jpeg")
ROW_ID = "row_id"
PIECE = 1 << 20  # bytes
FEWEST_YEARS, MONTHS = 100, 12  # smaller years were written with two digits


def scan_rows(
    kind: Kind, data: Path, texts: Collection[str] = (), notes: list[str] | None = None
) -> pl.LazyFrame:
    """Return the rows of a file, or of a folder of files of one kind.

    Columns named in `texts` stay as they are written, such as the code 007. What was guessed of a
    file is added to `notes`, for people.

    Raises:
        PerennialError: there is none.
    """
    if not data.exists():
        raise PerennialError(
            f"{data} does not exist", action="name a Parquet, CSV or JSON Lines file"
        )
    beneath = sorted(data.glob("*/*")) if kind == "image" and data.is_dir() else []
    if found := [path for path in beneath if path.name.lower().endswith(PICTURES)]:
        names = [str(path) for path in found]
        pictures = pl.DataFrame({"picture": names, "label": [path.parent.name for path in found]})
        return _with_pictures(pictures.lazy(), Path(), found[0].parent.parent)
    files = sorted(path for path in data.rglob("*") if path.is_file()) if data.is_dir() else [data]
    for endings in ENDINGS:
        chosen = [path for path in files if path.name.lower().endswith(endings)]
        if chosen and endings == PARQUET:
            return pl.scan_parquet(chosen)
        if chosen and endings == JSON_LINES:
            table = pl.scan_ndjson(chosen, infer_schema_length=None)
            return table.with_columns(pl.col(pl.Int128).cast(pl.String))
        if chosen:
            decoded = {file: text for file in chosen if (text := _decode(file, notes))}
            contents = [decoded.get(file) or file.read_bytes() for file in chosen if decoded]
            sources = contents or chosen
            separator = _separator(sources[0])
            # By default Polars decides on a column's type by its first 100 rows.
            scan = partial(
                pl.scan_csv, sources, separator=separator, try_parse_dates=True,
                infer_schema_length=None, null_values=["", "NA", "NaN", "nan", "null"],
            )  # fmt: skip
            table = scan()
            schema = table.collect_schema()
            names = schema.names()
            # Parquet has no whole numbers of more than 64 bits.
            long = {name for name, dtype in schema.items() if dtype == pl.Int128}
            unread = long | set(texts)
            if kind in ("table", "custom"):  # whose dates `parse_written_dates` reads
                unread |= _doubtful_dates(table)
            if kept := {name: pl.String for name in names if name in unread}:
                table = scan(schema_overrides=kept)
            # pandas writes its index as a first column without a name.
            table = table.rename({old: ROW_ID for old in names[:1] if not old.strip()})
            return _with_pictures(table, chosen[0].parent, data) if kind == "image" else table
    raise PerennialError(
        f"{data} holds no data that can be read",
        evidence=f"{len(files)} files, none of which ends in {', '.join(sum(ENDINGS, ()))}",
        action="name a Parquet, CSV or JSON Lines file, or a folder of them; for `image` also a "
        "folder with a folder of PNG or JPEG files for each class",
    )


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


def _decode(file: Path, notes: list[str] | None) -> bytes | None:
    """Return a file's text in UTF-8 with lines that Polars reads; None if it is such a text."""
    decode = getincrementaldecoder("utf-8")().decode
    with file.open("rb") as content:
        begin = content.read(PIECE)
        wide = begin.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
        if not wide and b"\0" in begin:
            return None  # not a text, which the reader reports
        old_lines = b"\r" in begin and b"\n" not in begin
        encoding = "utf-16" if wide else "utf-8"
        try:
            piece = b"" if wide else begin
            while piece:
                decode(piece)
                piece = content.read(PIECE)
        except UnicodeDecodeError:
            encoding = "cp1252"
    if encoding == "utf-8" and not old_lines:
        return None
    if encoding != "utf-8" and notes is not None:
        notes.append(f"encoding: {file.name} is not UTF-8; read as {encoding}")
    # Five bytes have no meaning in this encoding.
    text = file.read_bytes().decode(encoding, errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n").encode()


def _separator(source: Path | bytes) -> str:
    """Return the separator that the first line has most of."""
    if isinstance(source, Path):
        with source.open(encoding="utf-8-sig", errors="replace") as lines:
            first = next(lines, "")
    else:
        first = source.split(b"\n", 1)[0].decode()
    return max(",;\t|", key=first.count)


def _with_pictures(table: pl.LazyFrame, folder: Path, source: Path) -> pl.LazyFrame:
    """Read the files that a column names: their bytes become the column.

    Raises:
        BadDataError: one of them is not there.
    """
    schema = table.collect_schema()
    for name in (name for name, dtype in schema.items() if dtype == pl.String):
        rows = table.collect()
        paths = [folder / path for path in rows[name] if path is not None]
        if not paths or not paths[0].name.lower().endswith(PICTURES):
            continue
        if lost := [path for path in paths if not path.is_file()]:
            raise BadDataError(
                f"{len(lost)} of the pictures that {source} names do not exist",
                evidence=f"such as {lost[0]}",
                action=f"correct the column {name!r}: paths are taken from the file's folder",
            )
        content = [None if path is None else (folder / path).read_bytes() for path in rows[name]]
        return rows.with_columns(pl.Series(name, content, dtype=pl.Binary)).lazy()
    return table
