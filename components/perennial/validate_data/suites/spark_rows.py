"""Rows on Spark: all rows of a snapshot for the expectations that no count answers.

Spark Connect is a client without Java: the server reads the partitions itself, with its own
credentials, and Great Expectations computes there.
"""

import os
import re
from collections.abc import Iterable
from typing import Any

from perennial.contracts.errors import OutageError, PerennialError


def open_rows(address: str, uris: Iterable[str]) -> Any:  # noqa: ANN401 - pyspark has no types
    """Return the rows of Parquet files, which the server must be able to read, as a table of Spark.

    The address is one of Spark Connect, such as `sc://spark-connect:15002`.

    Raises:
        OutageError: Spark does not answer.
        PerennialError: pyspark is not installed, or Spark cannot read the files.
    """
    try:
        from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ImportError as error:
        raise PerennialError(
            f"the profile names Spark at {address}, but pyspark is not installed",
            evidence=str(error),
            action="build the data image with `pip install 'perennial[spark]'`, or remove [spark] "
            "from the profile: what no count answers is then judged on a sample",
        ) from error
    # Great Expectations opens the session again, by this variable.
    os.environ["SPARK_REMOTE"] = address
    try:
        session = SparkSession.builder.remote(address).getOrCreate()
        rows = session.read.parquet(*(re.sub("^s3://", "s3a://", uri) for uri in uris))
        _ = rows.columns  # asks the server, which has read nothing before
    except PySparkException as error:
        raise PerennialError(
            f"Spark at {address} cannot read the snapshot",
            evidence=str(error).strip().splitlines()[0],
            action="give the Spark server access to the files: its own credentials for s3a://",
        ) from error
    except Exception as error:  # whatever the transport raises
        raise OutageError(
            f"Spark at {address} does not answer",
            evidence=f"{type(error).__name__}: {error}"[:300],
            action="check the address in [spark] of the profile and that Spark Connect runs there",
        ) from error
    return rows
