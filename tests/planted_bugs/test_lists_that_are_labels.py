"""A list that is label and feature at once: exercises solved, tokens, items of a visit."""

from functools import partial
from typing import ClassVar

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn
from torch.nn import functional

from other_styles import dataset_of
from perennial.check_skeleton.examination import run_checks
from perennial.check_skeleton.subject import Subject
from perennial.contracts.errors import BadDataError
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL, WEIGHT, Task
from skeleton_tables import SETTINGS

ROWS, LENGTH, CODES, NONE = 1200, 12, 9, -1


def write_walks():
    """Lists of 5 to 12 codes, in which each code is usually followed by the next one."""
    rng = np.random.default_rng(5)
    rows = []
    for _ in range(ROWS):
        steps = np.where(rng.random(rng.integers(5, LENGTH + 1)) < 0.8, 1, rng.integers(0, CODES))
        rows.append(((rng.integers(CODES) + steps.cumsum()) % CODES).tolist())
    return pl.DataFrame({"row": range(ROWS), "shop": ["north", "south"] * 600, "label": rows})


WALKS = write_walks()


class Reader(nn.Module):
    """Reads codes from left to right and scores the next."""

    def __init__(self, *, is_last_only=False, is_bidirectional=False):
        super().__init__()
        self.codes = nn.Embedding(CODES + 1, 24, padding_idx=CODES)
        self.shops = nn.Embedding(2, 24)
        self.read = nn.GRU(24, 32, batch_first=True, bidirectional=is_bidirectional)
        self.head = nn.Linear(64 if is_bidirectional else 32, CODES)
        self.is_last_only = is_last_only

    def forward(self, before, shop):
        hidden, _ = self.read(self.codes(before) + self.shops(shop)[:, None])
        return self.head(hidden[:, -1] if self.is_last_only else hidden)


class NextCode(Task):
    """Every step is asked for the code that follows it: a language model of codes."""

    kind = "statistic"
    metrics: ClassVar = {"accuracy": "maximize"}
    shift, is_bidirectional = 1, False

    def encode(self, rows):
        tokens = torch.full((rows.height, LENGTH + 1), CODES)
        for row, codes in enumerate(rows["label"].to_list()):
            tokens[row, : len(codes)] = torch.tensor(codes)
        before, label = tokens[:, : LENGTH + 1 - self.shift], tokens[:, self.shift :]
        label = torch.where(label == CODES, NONE, label)
        shop = torch.tensor((rows["shop"] == "north").cast(pl.Int64).to_list())
        weight = (label != NONE).sum(dim=1).float()
        return {"before": before, "shop": shop, LABEL: label, WEIGHT: weight}

    def build_model(self):
        return Reader(is_bidirectional=self.is_bidirectional)

    def losses(self, output, batch):
        label = batch[LABEL]
        losses = functional.cross_entropy(output.mT, label, ignore_index=NONE, reduction="none")
        return losses.sum(dim=1) / batch[WEIGHT]

    def statistic(self, output, batch):
        right = (output.argmax(-1) == batch[LABEL]).double().sum(dim=1) / batch[WEIGHT]
        return right[:, None]

    def score(self, predictions, labels):
        return {"accuracy": float(np.average(predictions[:, 0], weights=labels))}


class NotShifted(NextCode):
    """Each step is asked for the code that it reads."""

    shift = 0


class BothWays(NextCode):
    """Each step reads the codes after it, too."""

    is_bidirectional = True


class Answers(NextCode):
    """One number for each step, whether its code is low; the steps before are read."""

    is_shifted = True

    def encode(self, rows):
        batch = super().encode(rows)
        label = torch.cat([batch["before"][:, :1], batch[LABEL]], dim=1)[:, :LENGTH]
        if self.is_shifted:
            first = torch.full((rows.height, 1), CODES)
            before = torch.cat([first, batch["before"][:, : LENGTH - 1]], dim=1)
        else:
            before = batch["before"][:, :LENGTH]
        low = torch.where(label < 0, NONE, (label < CODES // 2).long()).float()
        return batch | {"before": before, LABEL: low, WEIGHT: (low != NONE).sum(dim=1).float()}

    def build_model(self):
        class Number(Reader):
            def forward(self, before, shop):
                return super().forward(before, shop)[..., 0]

        return Number()

    def losses(self, output, batch):
        wanted, is_step = batch[LABEL].clamp(min=0), batch[LABEL] != NONE
        losses = functional.binary_cross_entropy_with_logits(output, wanted, reduction="none")
        return (losses * is_step).sum(dim=1) / batch[WEIGHT]

    def statistic(self, output, batch):
        right = ((output > 0).float() == batch[LABEL]).double().sum(dim=1) / batch[WEIGHT]
        return right[:, None]


class AnswersNotShifted(Answers):
    """Each step reads the code that it is asked about."""

    is_shifted = False


class LastCode(Task):
    """The last item of a visit is to be predicted from those before it."""

    kind = "multiclass"
    metrics: ClassVar = {"accuracy": "maximize"}
    stop = -1

    def encode(self, rows):
        before = torch.full((rows.height, LENGTH), CODES)
        for row, codes in enumerate(rows["label"].to_list()):
            shown = codes[: self.stop]
            before[row, LENGTH - len(shown) :] = torch.tensor(shown)
        last = torch.tensor([codes[-1] for codes in rows["label"].to_list()])
        shop = torch.tensor((rows["shop"] == "north").cast(pl.Int64).to_list())
        return {"before": before, "shop": shop, LABEL: last}

    def build_model(self):
        return Reader(is_last_only=True)

    def losses(self, output, batch):
        return functional.cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.softmax(-1)


class LastCodeShown(LastCode):
    """The whole list is shown, its last item with it."""

    stop = None


def subject_of(task_type, folder):
    dataset = dataset_of(WALKS, folder, features=("label", "shop"))
    make = partial(task_type, task_type.Options(), dataset.snapshot.task_columns)
    training = TrainingSection.model_validate(
        {"steps": 400, "global_batch_size": 128}, strict=False
    )
    return Subject.prepare(make, dataset, SETTINGS, training)


@pytest.mark.parametrize("task_type", [NextCode, Answers, LastCode])
def test_lists_that_predict_their_own_rest_pass(task_type, tmp_path):
    (result,) = run_checks(subject_of(task_type, tmp_path), ["future_independence"])
    assert result.outcome == "passed", result


@pytest.mark.parametrize("task_type", [NextCode, Answers, LastCode])
def test_no_check_blocks_lists_that_predict_their_own_rest(task_type, tmp_path):
    results = run_checks(subject_of(task_type, tmp_path))
    assert not [each for each in results if each.outcome == "failed"]


@pytest.mark.parametrize(
    ("task_type", "measured"),
    [
        (NotShifted, "the label of their own step"),
        (BothWays, "the label of their own step"),
        (AnswersNotShifted, "the label of their own step"),
        (LastCodeShown, "its label changes, and so do before"),
    ],
)
def test_lists_that_show_what_they_ask_for_are_found(task_type, measured, tmp_path):
    (result,) = run_checks(subject_of(task_type, tmp_path), ["future_independence"])
    assert result.outcome == "failed", result
    assert measured in result.measured


def test_a_plain_value_is_not_its_own_feature(tmp_path):
    frame = WALKS.with_columns(label=pl.col("label").list.first())
    with pytest.raises(BadDataError, match="the model would read its answer"):
        dataset_of(frame, tmp_path, features=("label", "shop"))


def test_a_text_is_its_own_feature_where_it_is_named_one(tmp_path):
    frame = WALKS.with_columns(label=pl.col("label").list.first().cast(pl.String))
    with pytest.raises(BadDataError, match=r"texts that data\.text names"):
        dataset_of(frame, tmp_path, features=("label", "shop"))
    dataset_of(frame, tmp_path / "named", features=("label", "shop"), text=("label",))
