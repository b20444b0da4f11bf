"""Classes in two spellings, as of two sources, and classes that differ by their case."""

import numpy as np
import pytest

from other_styles import Classes, dataset_of, numbers_table, table_of
from skeleton_tables import prepared
from workshop import results_of

X, SCORE = numbers_table(rows=1200)
PLACE = np.digitize(SCORE, [-1.5, -0.5, 0.5, 1.5])
KINDS = np.array(["Red ash", "Beech", "Café", "Norway Spruce", "oak"])
NAMES = KINDS[PLACE]
SOURCE = np.array(["north", "south"])[(X[:, 4] > 0.2).astype(int)]
IS_SOUTH = SOURCE == "south"


class Trees(Classes):
    """Reads the numbers; a source is not one."""

    def fit(self, train):
        super().fit(train.drop("source", "at", strict=False))

    def encode(self, rows):
        return super().encode(rows.drop("source", "at", strict=False))


class InSmallLetters(Trees):
    """One code for both spellings."""

    def fit_label(self, labels):
        return super().fit_label(labels.str.to_lowercase())

    def encode_label(self, labels):
        return super().encode_label(labels.str.to_lowercase())


def changed(change, rows=None):
    rows = IS_SOUTH if rows is None else rows
    return [change(name) if other else name for name, other in zip(NAMES, rows, strict=True)]


def examine(labels, folder, task=Trees, *, with_source=True, **more):
    columns = ({"source": SOURCE} if with_source else {}) | more
    frame = table_of(X, labels, **columns)
    features = tuple(f"x{place}" for place in range(X.shape[1]))
    dataset = dataset_of(frame, folder, features=features, meta=tuple(columns))
    return results_of(prepared(task, dataset), "labels")["labels"]


@pytest.mark.parametrize("change", [
    str.upper, str.lower, lambda name: f" {name} ", lambda name: name.replace(" ", "_").upper(),
    lambda name: name.replace("Café", "Cafe\N{COMBINING ACUTE ACCENT}").upper(),
])  # fmt: skip
def test_classes_in_the_spellings_of_two_sources_fail(change, tmp_path):
    found = examine(changed(change), tmp_path)
    assert found.outcome == "failed", found.measured
    assert "source tells which spelling" in found.measured
    assert "spell labels alike" in found.hint


def test_a_spelling_since_some_day_fails(tmp_path):
    days = np.arange(len(X))
    found = examine(changed(str.upper, days > 700), tmp_path, with_source=False, at=days // 3)
    assert found.outcome == "failed", found.measured


@pytest.mark.parametrize("labels", [
    changed(str.upper, X[:, 5] > 0.8 + X[:, 4]),
    [name.lower() if name == "Beech" and south else name
     for name, south in zip(NAMES, IS_SOUTH, strict=True)],
])  # fmt: skip
def test_a_name_in_two_spellings_without_a_source_warns(labels, tmp_path):
    assert examine(labels, tmp_path, with_source=False).outcome == "warned"


@pytest.mark.parametrize(("labels", "task"), [
    (NAMES, Trees),
    (changed(str.upper), InSmallLetters),
    (np.where(IS_SOUTH, np.array(list("ABCDE"))[PLACE], np.array(list("abcde"))[PLACE]), Trees),
    (np.array(["C", "C++", "C#", "Co", "CO"])[PLACE], Trees),
    (np.where(IS_SOUTH, np.array(["-1", "0", "+1", "1", "2"])[PLACE], "3"), Trees),
])  # fmt: skip
def test_other_names_pass(labels, task, tmp_path):
    assert "spell labels alike" not in examine(labels, tmp_path, task).hint
