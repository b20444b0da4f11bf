"""Metrics of whole numbers that cut fractions off, and metrics that round or count."""

from typing import ClassVar

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from mixed_numbers import Numbers
from other_styles import dataset_of, numbers_table, table_of
from skeleton_tables import prepared
from workshop import results_of

X, SCORE = numbers_table()
GRADES = np.digitize(SCORE, [-2.0, -0.7, 0.7, 2.0]).astype(float)


class Graded(Numbers):
    """Grades from 0 to 4 as numbers, of which a metric takes the nearest grades."""

    metrics: ClassVar = {"kappa": "maximize"}
    read = staticmethod(np.rint)

    def score(self, predictions, labels):
        found = self.read(predictions).clip(0, 4).astype(int)
        return {"kappa": float(cohen_kappa_score(labels.astype(int), found, weights="quadratic"))}


class CutOff(Graded):
    read = staticmethod(np.trunc)


class CutUp(Graded):
    read = staticmethod(np.ceil)


class Covered(Graded):
    """The share of the labels that predictions reach."""

    metrics: ClassVar = {"reached": "maximize"}

    def score(self, predictions, labels):
        return {"reached": float((labels <= predictions).mean())}


class Near(Graded):
    """The share of predictions within half a grade, of which those below count less."""

    metrics: ClassVar = {"near": "maximize"}

    def score(self, predictions, labels):
        off = predictions - labels
        return {"near": float(np.where(off < 0, 1 + off, np.abs(off) <= 0.5).clip(0, 1).mean())}


def examine(task_type, folder):
    dataset = dataset_of(table_of(X, GRADES), folder)
    return results_of(prepared(task_type, dataset), "metric_values")["metric_values"]


@pytest.mark.parametrize(
    ("task_type", "sides"),
    [(CutOff, ("above", "below")), (CutUp, ("below", "above"))],
)
def test_a_metric_that_cuts_fractions_fails(task_type, sides, tmp_path):
    result = examine(task_type, tmp_path)
    assert result.outcome == "failed", result.measured
    assert f"0.45 {sides[0]} the labels" in result.measured
    assert result.measured.endswith(f"0.3 {sides[1]}")


@pytest.mark.parametrize("task_type", [Graded, Covered, Near])
def test_metrics_that_round_or_count_do_not(task_type, tmp_path):
    assert examine(task_type, tmp_path).outcome in ("passed", "skipped")
