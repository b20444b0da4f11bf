"""Parquet files: what one file holds, read through one open handle, and every error explained."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from components.contracts.errors import BadDataError, PerennialError

_SHOWN_BYTES = 24


@dataclass(frozen=True)
class Footer:
    """What a file says of itself, and the digest of its bytes.

    Attributes:
        size_bytes: Of the file.
        sha256: Of all its bytes, in hexadecimal.
        rows: As its footer counts them.
        columns: Column name → polars data type.
    """

    size_bytes: int
    sha256: str
    rows: int
    columns: dict[str, str]


def read_footer(path: Path) -> Footer:
    """Digest and footer of a file, of the same bytes: a path could be globbed, or replaced.

    Raises:
        BadDataError: the file changed meanwhile, or two of its columns have one name.
    """
    with path.open("rb") as stream:
        before = os.fstat(stream.fileno())
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        stream.seek(0)
        metadata = pq.read_metadata(stream)
        stream.seek(0)
        schema = pl.read_parquet_schema(stream)
        after = os.fstat(stream.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise BadDataError(
            f"{path} changed while it was read",
            evidence=f"it had {before.st_size:,} bytes, then {after.st_size:,}",
            action="write partitions under a temporary name and rename them when complete",
        )
    return Footer(
        size_bytes=before.st_size,
        sha256=digest,
        rows=metadata.num_rows,
        columns={name: str(dtype) for name, dtype in schema.items()},
    )


@contextmanager
def readable(uri: str) -> Iterator[None]:
    """The one place where what polars, pyarrow and the system raise becomes our own error.

    Raises:
        BadDataError: the file cannot be read.
    """
    try:
        yield
    except PerennialError:
        raise
    except PermissionError as error:
        raise BadDataError(
            f"cannot read the partition {uri}",
            evidence=str(error),
            action="give the user that runs the step read access to it",
        ) from error
    except (pa.ArrowException, pl.exceptions.PolarsError, UnicodeError, OSError, ValueError) as e:
        raise BadDataError(
            f"the partition {uri} is no whole Parquet file",
            evidence=f"{type(e).__name__}: {e}",
            action="write it again, under a temporary name first, renamed when it is complete",
        ) from e
