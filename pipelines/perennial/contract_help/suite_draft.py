"""Draft of a suite of expectations from a contract's data, for people to edit and commit."""

import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from pydantic import JsonValue

from perennial.contract import Contract
from perennial.contracts.artifact import write_atomically
from perennial.contracts.errors import PerennialError
from perennial.data.dataset import Dataset
from perennial.snapshot_data.manifest import take_snapshot
from perennial.validate_data.suites.document import suite_text
from perennial.validate_data.suites.draft import draft_suite


def write_draft(contract: Contract, file: Path, out: Path) -> Iterator[str]:
    """Write the draft of a suite to `out`; yield, for people, what it holds and what to do with it.

    The option in the contract's `file` names the suite by its path from there.

    Raises:
        PerennialError: the file exists, or the data cannot be read.
    """
    if out.exists():
        raise PerennialError(
            f"{out} exists, and a suite that people edited is not overwritten",
            action="name another file with --out, compare the two, and take over what you want",
        )
    snapshot = take_snapshot(contract.data, contract.split)
    suite = draft_suite(Dataset(snapshot))
    end = snapshot.time_max.isoformat() if snapshot.time_max else None
    reference: dict[str, JsonValue] = {
        "snapshot": snapshot.digest(),
        "rows": snapshot.rows,
        "time_max": end,
    }
    meta: dict[str, JsonValue] = {
        "great_expectations_version": version("great-expectations"),
        "perennial": {"drafted_from": reference},
    }
    write_atomically(out, suite_text(suite, meta).encode())
    critical = sum(each.severity == "critical" for each in suite.expectations)
    place = os.path.relpath(out.resolve(), file.resolve().parent)
    yield (
        f"wrote {out}: {len(suite.expectations)} expectations of {snapshot.rows:,} rows, "
        f"{critical} critical; what was learned is a warning"
    )
    yield "read it, remove what need not hold, commit it, and name it in [expectations]:"
    yield f'suite = "{place}"'
