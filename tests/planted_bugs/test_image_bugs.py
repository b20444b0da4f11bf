"""Planted bugs of picture classifiers: each must be caught by the check that is meant for it."""

import re

import pytest

from components.engine.task import LABEL
from components.tasks.image_classification import ImageClassification
from planted import Bug, planted
from workshop import results_of

BUGS: list[Bug] = []


@planted(BUGS, "labels", "shuffled, shifted", material="digits")
class LabelsOfOtherPictures(ImageClassification):
    """labels follow the row's number in place of the picture's digit"""

    def encode(self, rows):
        batch = super().encode(rows)
        if LABEL in batch:
            batch[LABEL] = (batch[LABEL] + rows["row"].to_torch()) % 10
        return batch


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_caught_by_the_check_meant_for_it(bug, workshop):
    result = results_of(bug.subject(workshop), bug.check)[bug.check]
    assert (result.outcome, result.measured) == (bug.outcome, result.measured)
    assert re.search(bug.hint, result.hint), result.hint
    assert result.measured
    assert result.expected
    assert result.source
