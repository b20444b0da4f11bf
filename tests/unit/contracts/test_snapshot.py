"""A snapshot's columns, and its digest, by which trainings are resumed."""

import pytest

from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.snapshot import DataFile, Snapshot

COLUMNS = {
    "amount": "Float64",
    "at": "Datetime",
    "label": "Int64",
    "row": "Int64",
    "shop": "String",
}

EARLIER = "625b61843c41ea945f644f2486bcfb2a075bda41900a58a741f2258c0fa6fd6f"


def snapshot(**data):
    files = (DataFile(uri="/data/a.parquet", size_bytes=1, sha256="0" * 64, rows=9),)
    section = DataSection(uri="/data", label="label", time="at", ids=("row",), **data)
    return Snapshot(
        data=section, split=SplitSection(), files=files, columns=COLUMNS, rows=9, split_rows={}
    )


@pytest.mark.parametrize("data", [{}, {"features": ("amount", "shop")}])
def test_the_time_of_the_prediction_is_a_feature_where_requests_carry_it(data):
    assert list(snapshot(**data).task_columns.features) == ["amount", "shop"]
    served = snapshot(**data, time_is_feature=True)
    assert list(served.task_columns.features) == ["amount", "at", "shop"]
    assert served.described_features == ("amount", "shop")


def test_a_time_that_is_no_feature_leaves_the_digest_of_earlier_versions():
    """Trainings are resumed by it; the digest is that of the version before the option."""
    assert snapshot().digest() == EARLIER
    assert snapshot(time_is_feature=True).digest() != EARLIER


def test_there_must_be_a_time():
    with pytest.raises(ValueError, match="time_is_feature needs `time`"):
        DataSection(uri="/data", label="label", time_is_feature=True)
