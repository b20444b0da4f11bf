"""Pictures of the user's own files: in a folder for each class, named by a table, or as pixels."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from perennial.contracts.errors import BadDataError
from perennial.first_steps.draft import MOST_CLASSES

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
FEWEST_PIXELS = 64  # columns of one name and a number that are taken for a picture
FEWEST_OF_A_CLASS = 10


def is_picture(path: Path | str) -> bool:
    """Whether a file's name ends as a picture's."""
    return str(path).lower().endswith(PICTURES)


def pictures_by_class(folder: Path, files: Sequence[Path]) -> tuple[pl.LazyFrame, list[str]] | None:
    """Return pictures with the name of their folder, or the first word of their own, as label.

    None if there are none, or if they lie in one folder and their names tell no classes.
    """
    pictures = [path for path in files if is_picture(path)]
    labels, notes = [path.parent.name for path in pictures], list[str]()
    if len(set(labels)) < 2:
        labels = [(re.match(r"[^\W\d_]*", path.name) or [""])[0].lower() for path in pictures]
        counted = Counter(labels).values()
        if not 2 <= len(counted) <= MOST_CLASSES or min(counted) < FEWEST_OF_A_CLASS:
            return None
        notes.append("label: the first word of each file's name, such as " + repr(labels[0]))
    parts = sorted({path.relative_to(folder).parts[0] for path in pictures})
    if notes or set(parts) <= set(labels):
        parts = []
    else:
        notes.append(f"read: the pictures of {', '.join(parts)} together; runs split them again")
    names = [str(path) for path in pictures]
    table = pl.DataFrame({"picture": names, "label": labels})
    return with_pictures(table.lazy(), Path(), folder), notes


def with_pictures(table: pl.LazyFrame, folder: Path, source: Path) -> pl.LazyFrame:
    """Read the files that a column names: their bytes become the column, else `picture`.

    Names are paths from the folder, or those of files anywhere below it, also without ending.

    Raises:
        BadDataError: one of them is not there.
    """
    schema = table.collect_schema()
    for name in (name for name, dtype in schema.items() if dtype == pl.String):
        rows = table.collect()
        paths = [folder / path for path in rows[name] if path is not None]
        if not paths or not is_picture(paths[0].name):
            continue
        if lost := [path for path in paths if not path.is_file()]:
            if (found := _by_name(rows, name, folder)) is not None:
                return found
            raise BadDataError(
                f"{len(lost)} of the pictures that {source} names do not exist",
                evidence=f"such as {lost[0]}",
                action=f"correct the column {name!r}: paths are taken from the file's folder",
            )
        content = [None if path is None else (folder / path).read_bytes() for path in rows[name]]
        return rows.with_columns(pl.Series(name, content, dtype=pl.Binary)).lazy()
    if any(dtype == pl.Binary or dtype.is_nested() for dtype in schema.values()):
        return table
    for name, dtype in schema.items():
        is_name = dtype == pl.String or dtype.is_integer()
        if is_name and (found := _by_name(table.collect(), name, folder)) is not None:
            return found
    return table


def _by_name(rows: pl.DataFrame, column: str, folder: Path) -> pl.LazyFrame | None:
    """Return the rows with the pictures below a folder that a column names; None if it does not."""
    named = rows[column].cast(pl.String)
    if named.null_count() or named.n_unique() < rows.height:
        return None
    files: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        if is_picture(path):
            files |= dict.fromkeys((path.name, path.stem), path)
    found = [files.get(Path(name).name) for name in named]
    if not files or None in found:
        return None
    content = [path.read_bytes() for path in found if path is not None]
    return rows.with_columns(picture=pl.Series(content, dtype=pl.Binary)).lazy()


def pixels_as_pictures(table: pl.LazyFrame, notes: list[str]) -> pl.LazyFrame:
    """Return columns of pixels, such as pixel0 to pixel783, as one column of lists."""
    schema = table.collect_schema()
    stems = {
        name: re.sub(r"\d+", "#", name)
        for name, dtype in schema.items()
        if dtype.is_numeric() and re.search(r"\d", name)
    }
    counted = Counter(stems.values()).most_common(1)
    if not counted or counted[0][1] < FEWEST_PIXELS or "picture" in schema:
        return table
    pixels = [name for name, stem in stems.items() if stem == counted[0][0]]
    if all(math.isqrt(len(pixels) // each) ** 2 * each != len(pixels) for each in (1, 3)):
        return table
    notes.append(f"picture: {len(pixels):,} columns, {pixels[0]!r} to {pixels[-1]!r}")
    table = table.with_columns(picture=pl.concat_list(pixels))
    return table.drop(pixels)
