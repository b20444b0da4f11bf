"""Parquet files: what one file holds, read through one open handle, and every error explained."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from perennial.contracts.errors import BadDataError
from perennial.contracts.snapshot import DataFile

# A panic in polars is not an `Exception`.
LIBRARY_ERRORS = (pa.ArrowException, pl.exceptions.PolarsError, pl.exceptions.PanicException)
INTERNAL_COLUMNS = frozenset(
    [
        *("__row", "__partition_file__"),
        *(
            f"__{name}__"
            for name in (
                *("split", "block", "key", "rows", "day", "stratum"),
                *("features", "time", "order", "group", "before", "column", "present"),
            )
        ),
    ]
)
_MAX_PRECISION = 38
_SHOWN_PROBLEMS = 5
_SHOWN_NAME = 60


@dataclass(frozen=True)
class Partition:
    """A pinned file and its columns: name → polars data type."""

    file: DataFile
    columns: dict[str, str]


def read_footer(path: Path) -> tuple[int, dict[str, str]]:
    """Read rows and columns (name → polars data type) of a file, through one open handle.

    Raises:
        BadDataError: two of its columns have one name, or one cannot be used.
    """
    with path.open("rb") as stream:
        metadata = pq.read_metadata(stream)
        problems = [*_column_problems(metadata.schema)]
        if problems:
            raise BadDataError(
                "columns of the partition cannot be used",
                evidence="; ".join(problems[:_SHOWN_PROBLEMS]),
                action="write them under other names or as other types",
            )
        stream.seek(0)
        schema = pl.read_parquet_schema(stream)
    return metadata.num_rows, {name: str(dtype) for name, dtype in schema.items()}


@contextmanager
def readable(uri: str) -> Iterator[None]:
    """Explain what polars, pyarrow and the system raise about a file.

    Raises:
        BadDataError: the file cannot be read.
    """
    try:
        yield
    except BadDataError as error:
        # What is found inside a file does not know the partition's address.
        if uri in str(error):
            raise
        raise BadDataError(
            error.problem.replace("the partition", f"the partition {uri}"),
            evidence=error.evidence,
            action=error.action,
        ) from error
    except PermissionError as error:
        raise BadDataError(
            f"cannot read the partition {uri}",
            evidence=str(error),
            action="give the user that runs the step read access to it",
        ) from error
    except (*LIBRARY_ERRORS, UnicodeError, OSError, ValueError) as error:
        raise _unreadable(
            uri,
            error,
            problem="is not a complete Parquet file",
            action="write it again, under a temporary name first, renamed when it is complete",
        ) from error


@contextmanager
def decodable(uri: str) -> Iterator[None]:
    """Explain errors of decoding the rows of a partition whose footer can be read.

    Raises:
        BadDataError: they cannot be decoded.
    """
    try:
        yield
    except LIBRARY_ERRORS as error:
        raise _unreadable(
            uri,
            error,
            problem="cannot be decoded",
            action="write it again under a new name and remove this one: its footer is intact but "
            "its pages are damaged",
        ) from error


def _unreadable(uri: str, error: BaseException, *, problem: str, action: str) -> BadDataError:
    """The error for a partition that a library refused, by the message."""
    if "encrypt" in str(error).lower():
        problem, action = "is encrypted", "write it without encryption; the store can encrypt it"
    if isinstance(error, pa.ArrowNotImplementedError):
        problem, action = "has a type that cannot be read", "write that column as another type"
    return BadDataError(
        f"the partition {uri} {problem}", evidence=f"{type(error).__name__}: {error}", action=action
    )


def _column_problems(schema: pq.ParquetSchema) -> Iterator[str]:
    """Columns that polars cannot read, or would take for something else."""
    columns = [(field.name, field.type) for field in schema.to_arrow_schema()]
    counts = Counter(name for name, _ in columns)
    yield from (f"the name {name!r} occurs more than once" for name in counts if counts[name] > 1)
    for name, kind in columns:
        problem = _name_problem(name) or _type_problem(kind)
        if problem:
            yield f"column {name[:_SHOWN_NAME]!r} {problem}"


def _name_problem(name: str) -> str:
    if not name:
        return "has an empty name"
    if name == "*" or (name.startswith("^") and name.endswith("$") and name != "^"):
        return "has a name that is a pattern for polars, which would select other columns"
    if name in INTERNAL_COLUMNS:
        return "has a name that is used internally"
    return ""


def _type_problem(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind) and kind.precision > _MAX_PRECISION:
        return f"is {kind}; at most {_MAX_PRECISION} digits can be read"
    if pa.types.is_timestamp(kind) and kind.tz:
        try:
            pl.Series([0]).cast(pl.Datetime("us")).dt.replace_time_zone(kind.tz)
        except pl.exceptions.PolarsError:
            return f"has the time zone {kind.tz!r}; use UTC or a name such as Europe/Berlin"
    inner = [kind.field(index).type for index in range(kind.num_fields)]
    return next((found for each in inner if (found := _type_problem(each))), "")
