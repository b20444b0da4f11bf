"""Texts and lists of which one end never enters."""

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from other_styles import Classes, Columns, dataset_of
from perennial.check_skeleton.checks.data.encoding.inputs import check_repeated_inputs
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL
from skeleton_tables import SETTINGS

LONGEST, ITEMS, LETTERS = 8, 20, "0123456789+ "


def rows_of_histories(rows: int = 1200) -> pl.DataFrame:
    """Up to eight items, of which the last tells the next; sums as texts; codes of few letters."""
    generator = np.random.default_rng(12)
    step = generator.permutation(ITEMS)
    seen, following = [], []
    for _ in range(rows):
        items = [int(generator.integers(ITEMS))]
        for _ in range(int(generator.integers(3, LONGEST + 1))):
            follows = generator.random() < 0.8
            items.append(int(step[items[-1]] if follows else generator.integers(ITEMS)))
        seen.append([f"item{each}" for each in items[:-1]])
        following.append(f"item{items[-1]}")
    numbers = generator.integers(0, 100, (rows, 2))
    return pl.DataFrame({
        "row": range(rows),
        "seen": seen,
        "sum": [f"{a}+{b}" for a, b in numbers],
        "total": [str(a + b) for a, b in numbers],
        "cabin": [f"{'ABCDEF'[a % 6]}{b}" for a, b in numbers],
        "label": following,
    })  # fmt: skip


def filled(codes, length, *, left=False):
    rest = [0] * (length - len(codes))
    return rest + codes if left else codes + rest


class Bag(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.table, self.out = nn.Embedding(64, 8), nn.Linear(8, outputs)

    def forward(self, x):
        return self.out(self.table(x).mean(dim=1))


def subject_of(folder, read, of="label", answer=None, frame=None):
    """The next item, or a text that `answer` encodes, from what `read` makes of a row."""

    class NextItem(Classes):
        def fit(self, train):
            self.fitted = self.fit_label(train.collect()[of])

        def encode(self, rows):
            batch = {"x": torch.tensor([read(each) for each in rows.iter_rows(named=True)])}
            if of in rows.columns:
                batch[LABEL] = self.encode_label(rows[of])
            return batch

        def build_model(self):
            return Bag(ITEMS)

    class Sums(Columns):
        kind = "statistic"

        def fit(self, train):
            self.fitted = {}

        def encode(self, rows):
            batch = {"x": torch.tensor([read(each) for each in rows.iter_rows(named=True)])}
            if of in rows.columns:
                batch[LABEL] = torch.tensor([letters(answer(each)) for each in rows[of]])
            return batch

        def build_model(self):
            return Bag(3 * len(LETTERS))

        def losses(self, output, batch):
            return output.mean(dim=1)

        def predict(self, output):
            return output

        def expected_initial_loss(self):
            return 1.0

    frame = rows_of_histories() if frame is None else frame
    frame = frame.drop("label").rename({of: "label"}) if of != "label" else frame.drop("total")
    of, task = "label", Sums if answer else NextItem
    dataset = dataset_of(frame, folder)
    return Subject.prepare(
        lambda: task(task.Options(), dataset.snapshot.task_columns), dataset, SETTINGS,
        TrainingSection(steps=100, global_batch_size=64),
    )  # fmt: skip


def letters(text):
    return [LETTERS.index(each) for each in text]


def items(row):
    return [1 + int(each.removeprefix("item")) for each in row["seen"]]


FAR_TOO_LONG = 24

MISTAKES = {
    "the oldest items": lambda row: filled(items(row)[:2], LONGEST, left=True),
    "the oldest items, behind them padding": lambda row: filled(items(row)[:3], LONGEST),
    "the newest items alone": lambda row: filled(items(row)[-2:], LONGEST, left=True),
    "the first number": lambda row: letters(row["sum"][:2].ljust(5)),
    "the oldest items, in a tensor of their length": lambda row: filled(items(row)[:3], 3),
}
HEALTHY = {
    "all items": lambda row: filled(items(row), LONGEST),
    "the newest four": lambda row: filled(items(row)[-4:], 4, left=True),
    "in a tensor that is far too long": lambda row: filled(items(row), FAR_TOO_LONG, left=True),
    "all but the last": lambda row: filled(items(row)[:-1], LONGEST),
    "a bag of items": lambda row: [int(each in items(row)) for each in range(1, ITEMS + 1)],
    "the sum": lambda row: letters(row["sum"].ljust(5)),
    "the sum backwards": lambda row: letters(row["sum"].ljust(6)[::-1]),
    "the deck of a cabin": lambda row: [ord(row["cabin"][0]) - 64, *filled(items(row), LONGEST)],
    "the deck alone": lambda row: [ord(row["cabin"][0]) - 64, 0],
}


@pytest.mark.parametrize("name", MISTAKES)
def test_sequences_cut_by_mistake_fail(name, tmp_path):
    result = check_repeated_inputs(subject_of(tmp_path, MISTAKES[name]))
    assert result.outcome == "failed", result.measured
    assert "are read" in result.measured


@pytest.mark.parametrize("name", HEALTHY)
def test_sequences_read_or_cut_by_design_are_not_blocked(name, tmp_path):
    result = check_repeated_inputs(subject_of(tmp_path, HEALTHY[name]))
    assert result.outcome != "failed", result.measured
    assert "are read" not in result.measured


@pytest.mark.parametrize(("answer", "outcome"), [
    (lambda text: text[:1].ljust(3), "failed"),
    (lambda text: text.ljust(3), "passed"),
    (lambda text: text.rjust(4), "passed"),
])  # fmt: skip
def test_truncated_predictions_fail(answer, outcome, tmp_path):
    read = HEALTHY["the sum"]
    result = check_repeated_inputs(subject_of(tmp_path, read, of="total", answer=answer))
    assert result.outcome == outcome, result.measured


def test_labels_revealed_by_design_only_warn(tmp_path):
    last = pl.col("seen").list.last().str.slice(4).cast(pl.Int64)
    frame = rows_of_histories().with_columns(label=last % 2)
    subject = subject_of(tmp_path, lambda row: filled(items(row)[:3], 3), frame=frame)
    result = check_repeated_inputs(subject)
    assert result.outcome == "warned"
    assert "of the label" in result.measured


WORDS = [
    "a",
    "box",
    "of",
    "parts",
    "then",
    "the",
    "panel",
    "is",
    "lifted",
    "and",
    "turned",
    "to",
    "its",
    "side",
]


def pairs_of_texts(rows=900):
    """Two texts of four to nine words each."""
    rng = np.random.default_rng(4)

    def texts():
        return [" ".join(rng.choice(WORDS, rng.integers(4, 10))) for _ in range(rows)]

    frame = pl.DataFrame({"row": range(rows), "first": texts(), "second": texts()})
    return frame.with_columns(
        label=pl.Series([f"item{each}" for each in rng.integers(2, size=rows)])
    )


@pytest.mark.parametrize(("kept", "length", "outcome"), [
    (20, 20, "passed"), (10, 20, "failed"), (10, 10, "passed"),
])  # fmt: skip
def test_the_second_of_two_texts_is_cut(kept, length, outcome, tmp_path):
    """Both stand in one tensor, which has room or has none."""

    def read(row):
        codes = [1 + WORDS.index(each) for each in f"{row['first']} {row['second']}".split()]
        return filled(codes[:kept], length)

    frame = pairs_of_texts().with_columns(total=pl.lit("0"))
    result = check_repeated_inputs(subject_of(tmp_path, read, frame=frame))
    assert result.outcome == outcome, result.measured
    if outcome == "failed":
        assert "first 10 elements of first and second are read" in result.measured
