"""Pictures of the user's own files: in a folder for each class, named by a table, or as pixels."""

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import polars as pl

from perennial.contracts.errors import BadDataError
from perennial.first_steps.draft import MOST_CLASSES
from perennial.reports.text import counted

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
FEWEST_PIXELS = 64  # columns of one name and a number that are taken for a picture
FEWEST_OF_A_CLASS = 10
SHOWN = 8


def is_picture(path: Path | str) -> bool:
    """Whether a file's name ends as a picture's."""
    return str(path).lower().endswith(PICTURES)


def pictures_by_class(
    folder: Path, files: Sequence[Path], classes: Collection[str] = ()
) -> tuple[pl.LazyFrame, list[str]] | None:
    """Return pictures with the name of their folder, or the first word of their own, as label.

    None if there are none, or if they lie in one folder and their names tell no classes. A dataset
    that has `classes` decides which of the two names counts, and then one class is enough.

    Raises:
        BadDataError: neither is one of `classes`.
    """
    pictures = [path for path in files if is_picture(path)]
    labels, notes = [path.parent.name for path in pictures], list[str]()
    words = [(re.match(r"[^\W\d_]*", path.name) or [""])[0].lower() for path in pictures]
    if is_by_word := not set(labels) & set(classes) if classes else len(set(labels)) < 2:
        counts = Counter(words).values()
        is_told = 2 <= len(counts) <= MOST_CLASSES and min(counts) >= FEWEST_OF_A_CLASS
        if not pictures or not (classes or is_told):
            return None
        if classes and not set(words) & set(classes):
            raise BadDataError(
                "neither folders nor names of the pictures are classes of the dataset",
                evidence=f"folders {_list(labels)}, names such as {pictures[0].name!r}; classes "
                f"{_list(classes)}",
                action="put them in a folder for each class; a class that is new to the dataset "
                "comes together with others, or as a table of files and labels",
            )
        labels = words
        notes.append("label: the first word of each file's name, such as " + repr(labels[0]))
    notes += _note_odd_classes(pictures, labels, classes)
    parts = sorted({path.relative_to(folder).parts[0] for path in pictures})
    if is_by_word or set(parts) <= set(labels) or folder.name in labels:
        parts = []
    else:
        notes.append(f"read: the pictures of {', '.join(parts)} together; runs split them again")
    names = [str(path) for path in pictures]
    table = pl.DataFrame({"picture": names, "label": labels})
    return with_pictures(table.lazy(), Path(), folder), notes


def _list(names: Collection[str]) -> str:
    shown = sorted(set(names))
    return ", ".join(map(repr, shown[:SHOWN])) + (", …" if len(shown) > SHOWN else "")


def _note_odd_classes(
    pictures: Sequence[Path], labels: Sequence[str], classes: Collection[str]
) -> list[str]:
    """Return notes on classes that the dataset lacks, or that a stray file may have made."""
    counts = Counter(labels)
    if classes:
        return [
            f"label: {name!r} is new to the dataset, {counted(count, 'picture')}"
            for name, count in sorted(counts.items())
            if name not in classes
        ]
    usual = max(counts.values())
    return [
        f"label: {name!r} has {counted(count, 'picture')}, such as "
        f"{pictures[labels.index(name)]}; move it if it is no class of its own"
        for name, count in sorted(counts.items())
        if FEWEST_OF_A_CLASS * count <= usual
    ]


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


def find_picture(folder: Path, content: bytes) -> str:
    """Return the path of the picture file with these bytes; empty if there is none."""
    files = (path for path in sorted(folder.rglob("*")) if is_picture(path))
    size = len(content)
    alike = (path for path in files if path.is_file() and path.stat().st_size == size)
    return next((str(path) for path in alike if path.read_bytes() == content), "")


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
