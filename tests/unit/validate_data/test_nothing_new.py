"""A validation is reused while snapshot, limits and code are the same, without opening anything."""

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from perennial.contracts.artifact import documents_in
from perennial.contracts.environment import CODE_DIGEST
from perennial.contracts.errors import BadDataError

RECORD = "store/monitoring/demo/validation.json"


def outputs(folder):
    pages = [(folder / name).read_bytes() for name in ("report", "perennial_suite")]
    return [documents_in(folder / "validation"), *pages]


def test_with_nothing_new_the_last_validation_is_handed_on(
    validate, snapshot_of, healthy, monkeypatch
):
    snapshot = snapshot_of(healthy)
    first = validate(snapshot)
    written = outputs(validate.out)
    monkeypatch.setitem(sys.modules, "perennial.validate_data.validation", None)  # not imported
    for file in snapshot.files:
        Path(file.uri).unlink()
    again = validate(snapshot)
    assert outputs(validate.out) == written
    assert again.metrics == first.metrics
    assert again.summary.startswith("Nothing new since 20")
    assert again.summary.endswith(f" UTC. {first.summary}")


@pytest.mark.parametrize("change", ["a partition", "a limit", "the code", "a damaged record"])
def test_whatever_changes_is_judged_again(validate, snapshot_of, healthy, monkeypatch, change):
    validate(snapshot_of(healthy.head(2_500)))
    rows, limits = [healthy.head(2_500)], {}
    if change == "a partition":
        rows.append(healthy.tail(500))
    elif change == "a limit":
        limits = {"min_rows": 600}
    elif change == "the code":
        monkeypatch.setenv(CODE_DIGEST, "other")
    else:
        (validate.out.parent / RECORD).write_text('{"at": ')
    assert "Nothing new" not in validate(snapshot_of(*rows), **limits).summary
    assert "Nothing new" in validate(snapshot_of(*rows), **limits).summary


def test_failed_validation_is_not_reused(validate, snapshot_of, healthy):
    broken = snapshot_of(healthy.with_columns(amount=pl.lit(None, pl.Float64)))
    for _ in range(2):
        with pytest.raises(BadDataError, match="amount"):
            validate(broken)
    assert not (validate.out.parent / RECORD).exists()


def test_step_alone_imports_no_great_expectations():
    code = "import perennial.validate_data.step, sys; sys.exit('great_expectations' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
