"""The section refuses what cannot be meant."""

import json

import pytest
from pydantic import ValidationError

from perennial.validate_data.config import ExpectationsSection


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"leakage_auc_warn": 0.99}, "above leakage_auc_fail"),
        ({"columns": {"x": {"min": 2, "max": 1}}}, "swap them"),
        ({"columns": {"x": {"matches": "("}}}, "not a regular expression"),
        ({"max_overlap_share": 1.5}, "less than or equal to 1"),
        ({"min_rows": 0}, "greater than or equal to 1"),
        ({"max_rows": 1}, "Extra inputs"),
    ],
)
def test_refuses(section, message):
    with pytest.raises(ValidationError, match=message):
        ExpectationsSection.from_json(json.dumps(section))


def test_survives_the_way_through_json():
    text = '{"columns":{"x":{"allowed":["a",1,2.5,true],"max":3}}}'
    section = ExpectationsSection.from_json(text)
    assert ExpectationsSection.from_json(section.to_json()) == section
