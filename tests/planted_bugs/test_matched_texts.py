"""Questions and answers of a batch: right answers that count as wrong, answers in questions."""

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn
from torch.nn import functional

from other_styles import dataset_of
from perennial.check_skeleton.checks.data.leaks.telling_columns import check_telling_columns
from perennial.check_skeleton.checks.loss.false_negatives import check_false_negatives
from perennial.engine.task import LABEL, Task
from skeleton_tables import prepared

CODES, WIDTH, LENGTH = 60, 8, 4


def questions(answers, rows=500):
    """Questions of four codes, each with one of so many answers of three."""
    random = np.random.default_rng(4)
    known = random.integers(1, CODES, (answers, 3))
    chosen = random.integers(0, answers, rows)
    asked = np.column_stack([known[chosen][:, :2], random.integers(1, CODES, (rows, 2))])
    columns = {"question": asked.tolist(), "answer": known[chosen].tolist()}
    return pl.DataFrame({"row": range(rows), **columns, "label": [0] * rows})


class TwoTowers(nn.Module):
    """Means of embeddings, as two vectors or one behind the other."""

    is_flat = False

    def __init__(self):
        super().__init__()
        self.asked, self.answers = nn.EmbeddingBag(CODES, WIDTH), nn.EmbeddingBag(CODES, WIDTH)

    def forward(self, question, answer):
        both = torch.stack([self.asked(question), self.answers(answer)], dim=1)
        return both.flatten(1) if self.is_flat else both


class FlatTowers(TwoTowers):
    is_flat = True


class Answers(Task):
    """Every other answer of the batch is wrong."""

    kind = "statistic"
    metrics = dict.fromkeys(["off"], "minimize")
    needs_whole_batch, scored_together = True, 32
    model = TwoTowers

    def encode(self, rows):
        ids = {name: torch.tensor(rows[name].to_list()) for name in ("question", "answer")}
        return {**ids, LABEL: torch.zeros(rows.height, dtype=torch.long)}

    def build_model(self):
        return self.model()

    def training_losses(self, output, batch):
        asked, answers = output.reshape(len(output), 2, WIDTH).unbind(1)
        same = (batch["answer"][:, None] == batch["answer"][None]).all(dim=2)
        return self.contrast(asked @ answers.T, same)

    def contrast(self, products, same):
        return functional.cross_entropy(products, torch.arange(len(products)), reduction="none")

    def losses(self, output, batch):
        groups = zip(output.split(32), batch["answer"].split(32), strict=True)
        return torch.cat([self.training_losses(o, {"answer": a}) for o, a in groups])

    def statistic(self, output, batch):
        return self.losses(output, batch)

    def score(self, predictions, labels):
        return {"off": float(predictions.mean())}


class FlatAnswers(Answers):
    model = FlatTowers


class Masked(Answers):
    """The same answer elsewhere is left out."""

    def contrast(self, products, same):
        others = same & ~torch.eye(len(same), dtype=torch.bool)
        return super().contrast(products.masked_fill(others, -torch.inf), same)


class AllRight(Answers):
    """The same answer elsewhere is as right as the row's own."""

    def contrast(self, products, same):
        return -(products.log_softmax(dim=1) * same / same.sum(dim=1)).sum(dim=1)


@pytest.mark.parametrize(
    ("task", "answers", "outcome"),
    [
        (Answers, 60, "warned"),
        (FlatAnswers, 60, "warned"),
        (Answers, 20_000, "passed"),
        (Masked, 60, "passed"),
        (AllRight, 60, "passed"),
    ],
)
def test_right_answers_of_other_rows_that_count_as_wrong_are_found(
    tmp_path, task, answers, outcome
):
    dataset = dataset_of(questions(answers), tmp_path, features=("question", "answer"))
    found = check_false_negatives(prepared(task, dataset))
    assert found.outcome == outcome, found


def searches(task_type):
    """What was typed and what was bought, as the log of the search box has it."""
    random = np.random.default_rng(6)
    parts = [
        f"{each} {size} mm" for each in ("bolt", "nut", "ring", "pin") for size in range(9, 40)
    ]
    bought = random.choice(parts, 500).tolist()
    typed = [task_type.log(f"cheap {part.split()[0]}", part) for part in bought]
    return pl.DataFrame({"row": range(500), "typed": typed, "bought": bought, "label": [0] * 500})


class Searches(Answers):
    """Finds what was bought among what others bought."""

    @staticmethod
    def log(typed, part):
        return typed

    def encode(self, rows):
        return {"x": torch.zeros(rows.height, 2), LABEL: torch.zeros(rows.height)}


class Completed(Searches):
    """The log is saved after the click."""

    @staticmethod
    def log(typed, part):
        return f"{typed} > {part.upper()}"


class BeginsWithTitle(Searches):
    """A description begins with the title."""

    @staticmethod
    def log(typed, part):
        return f"{part} of steel"


@pytest.mark.parametrize(
    ("task", "is_found"), [(Searches, False), (Completed, True), (BeginsWithTitle, False)]
)
def test_texts_that_end_with_their_answer_are_found(tmp_path, task, is_found):
    dataset = dataset_of(searches(task), tmp_path, features=("typed", "bought"))
    found = check_telling_columns(prepared(task, dataset))
    assert (found.outcome == "failed") == is_found, found
    assert ("typed ends with bought in 100%" in found.measured) == is_found
