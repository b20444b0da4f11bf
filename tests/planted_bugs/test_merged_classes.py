"""Classes that become one on the way to the labels, and classes that were merged on purpose."""

import numpy as np
import pytest
import torch

from mixed_numbers import subject_of
from other_styles import Classes, Module, numbers_table, table_of
from perennial.check_skeleton.checks.loss.output_form import check_output_form

NAMES = ["ash", "beech", "fir", "larch", "oak"]


class Coded(Classes):
    """Five kinds of trees, coded in some way; the model has an output for each code counted."""

    outputs = 5

    def fit_label(self, labels):
        return {}

    def code(self, value):
        return value

    def encode_label(self, labels):
        return torch.tensor([self.code(each) for each in labels])

    def build_model(self):
        return Module(self.network(self.outputs))


class ShiftedDown(Coded):
    """labels that begin at 0 are taken down by one"""

    def code(self, value):
        return max(value - 1, 0)


class CutOff(Coded):
    """labels are cut at 3"""

    def code(self, value):
        return min(value, 3)


class Misspelt(Coded):
    """one name is missing, and what is unknown becomes the first class"""

    def code(self, value):
        return {"ash": 0, "beech": 1, "firr": 2, "larch": 3, "oak": 4}.get(value, 0)


class Merged(Coded):
    """Rare kinds are one class, and the model has as many outputs as classes are left."""

    outputs = 4

    def code(self, value):
        return min(value, 3)


class OneOutputMore(Merged):
    """Merged on purpose into three, with outputs for four: nothing is lost."""

    def code(self, value):
        return min(value, 2)


class FromOne(Coded):
    """Labels from 1 to 5, taken down by one."""

    def code(self, value):
        return value - 1


def trees(first=0, *, named=False):
    x, score = numbers_table()
    kind = np.digitize(score, [-2, -0.7, 0.7, 2])
    return table_of(x, [NAMES[each] for each in kind] if named else kind + first)


@pytest.mark.parametrize(
    ("task_type", "rows", "measured"),
    [
        (ShiftedDown, trees(), "[0, 1] have one code, and no label is [4]"),
        (CutOff, trees(), "[3, 4] have one code, and no label is [4]"),
        (Misspelt, trees(named=True), "['ash', 'fir'] have one code, and no label is [2]"),
    ],
)
def test_values_that_share_a_code_although_each_has_an_output_fail(
    task_type, rows, measured, tmp_path
):
    result = check_output_form(subject_of(task_type, rows, tmp_path))
    assert (result.outcome, result.measured) == ("failed", result.measured)
    assert measured in result.measured


@pytest.mark.parametrize(
    ("task_type", "rows"),
    [(Coded, trees()), (Merged, trees()), (OneOutputMore, trees()), (FromOne, trees(1))],
)
def test_classes_may_be_merged_and_counted_from_one(task_type, rows, tmp_path):
    result = check_output_form(subject_of(task_type, rows, tmp_path))
    assert result.outcome != "failed", result.measured
