"""Planted bugs of metrics, labels that leak, inputs and imports."""

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from perennial.engine.metrics.ranking import roc_auc
from perennial.engine.task import LABEL
from perennial.tasks.image_classification import ImageClassification
from perennial.tasks.image_text import ImageTextContrastive
from perennial.tasks.language_modeling import CausalLanguageModel
from perennial.tasks.tabular import TabularClassification, TabularRegression
from planted import Bug, planted, require_caught
from workshop import results_of

BUGS: list[Bug] = []


# Metrics


@planted(BUGS, "metric_values", "computes roc_auc of hard answers", material="binary")
class AreaOfAnswers(TabularClassification):
    """the ROC area is taken of answers in place of probabilities"""

    def score(self, predictions, labels):
        answers = (predictions > 0.5).astype(float)
        found = super().score(predictions, labels)
        return {**found, "roc_auc": roc_auc(answers, labels == 1)}


@planted(BUGS, "metric_values", "another tokenizer", material="documents")
class FourBytesForEach(CausalLanguageModel):
    """each token counts as four bytes, whatever it stands for"""

    def statistic(self, output, batch):
        found = super().statistic(output, batch)
        return torch.stack([found[:, 0], torch.full_like(found[:, 1], 4.0)], dim=1)


@planted(BUGS, "metric_values", "probabilities from 0.3", material="binary", outcome="warned")
class LowThreshold(TabularClassification):
    """accuracy counts a probability of 0.3 as a yes"""

    metrics: ClassVar = {"accuracy": "maximize"}

    def score(self, predictions, labels):
        return {"accuracy": float(np.mean((predictions > 0.3) == labels))}


@planted(BUGS, "metric_values", "computes precision of class 0", material="binary", positive=0.2)
class OtherClassPrecision(TabularClassification):
    """precision is that of the frequent class, which is coded 0"""

    metrics: ClassVar = {"precision": "maximize"}

    def score(self, predictions, labels):
        answers = predictions > 0.5
        right = np.sum(~answers & (labels == 0))
        return {"precision": float(right / max(np.sum(~answers), 1))}


@planted(BUGS, "metric_values", "averaged over parts", material="binary", outcome="warned")
class AreaOfParts(TabularClassification):
    """the ROC area is the mean over parts of 64 rows"""

    def score(self, predictions, labels):
        found = super().score(predictions, labels)
        parts = range(0, len(labels) - 1, 64)
        areas = [
            super(AreaOfParts, self).score(predictions[at : at + 64], labels[at : at + 64])
            for at in parts
        ]
        return {**found, "roc_auc": float(np.mean([each["roc_auc"] for each in areas]))}


@planted(BUGS, "metric_values", "computes mse", material="regression")
class RootForgotten(TabularRegression):
    """rmse lacks its root"""

    def score(self, predictions, labels):
        found = super().score(predictions, labels)
        return {**found, "rmse": found["rmse"] ** 2}


@planted(BUGS, "metric_values", "wrong axis", material="digits")
class WrongAxis(ImageClassification):
    """answers are the best picture of each class, not the best class of each picture"""

    def score(self, predictions, labels):
        found = super().score(predictions, labels)
        best = predictions.argmax(axis=0)
        hits = labels[best] == np.arange(predictions.shape[1])
        return {**found, "accuracy": float(hits.mean())}


@planted(BUGS, "metric_values", "computes accuracy", material="digits", rows=900)
class MicroForMacro(ImageClassification):
    """macro F1 is averaged over examples, which makes it the accuracy"""

    def score(self, predictions, labels):
        found = super().score(predictions, labels)
        return {**found, "macro_f1": found["accuracy"]}


@planted(BUGS, "metric_values", "texts' perplexities", material="documents")
class MeanOfPerplexities(CausalLanguageModel):
    """perplexity is the mean over texts of their own perplexities"""

    def score(self, predictions, labels):
        found = super().score(predictions, labels)
        return {**found, "perplexity": float(np.exp(predictions[:, 0]).mean())}


@planted(BUGS, "metric_values", "computes recall at 2", material="captions", rows=600)
class OneAheadIsForgotten(ImageTextContrastive):
    """the first caption that scores higher than the right one is not counted"""

    def statistic(self, output, batch):
        found = super().statistic(output, batch)
        found[:, 0::2] = (found[:, 0::2] - 1).clamp_min(0)
        return found


# Leakage


@planted(BUGS, "shuffled_labels", "label reaches the inputs", material="binary")
class LabelAmongInputs(TabularClassification):
    """the label is one of the inputs, and 0 where it is not known"""

    def encode(self, rows):
        batch = super().encode(rows)
        leak = batch.get(LABEL, torch.zeros(rows.height)).float().unsqueeze(1)
        return {**batch, "numbers": torch.cat([batch["numbers"][:, 1:], leak], dim=1)}


@planted(BUGS, "shuffled_labels", "label reaches the inputs", material="digits")
class MarkedPictures(ImageClassification):
    """one pixel of each picture is as bright as its label"""

    def encode(self, rows):
        batch = super().encode(rows)
        if LABEL in batch:
            batch["image"][:, 0, 0, :] = (batch[LABEL].float() - 4.5).unsqueeze(1) / 3
        return batch


@planted(BUGS, "shuffled_labels", "each row's own label", material="binary", outcome="warned")
class MeansOfRareIds(TabularClassification):
    """an input is the mean label of a column that names single rows"""

    means: ClassVar[dict[float, float]] = {}

    def fit(self, train):
        super().fit(train)
        rows = train.select("x0", self.columns.label).collect()
        self.means = dict(zip(rows["x0"], rows[self.columns.label], strict=True))

    def encode(self, rows):
        batch = super().encode(rows)
        known = [float(self.means.get(value, 0.5)) for value in rows["x0"]]
        batch["numbers"][:, 0] = 2 * torch.tensor(known) - 1
        return batch


# Inputs


@planted(BUGS, "repeated_inputs", "failed decoding", material="digits", outcome="warned")
class BlankPictures(ImageClassification):
    """every fourth picture cannot be read and becomes an empty one"""

    def encode(self, rows):
        batch = super().encode(rows)
        batch["image"][torch.from_numpy((rows["row"] % 4 == 0).to_numpy())] = 0.0
        return batch


@planted(BUGS, "repeated_inputs", "limit that cuts", material="documents", rows=2000)
class ShortTexts(CausalLanguageModel):
    """of each text only the first character is kept"""

    def encode(self, rows):
        return super().encode(rows.with_columns(pl.col("text").str.slice(0, 1)))


@planted(BUGS, "input_form", "where training did not|training did not have", material="binary")
class NoUnknownCode(TabularClassification):
    """the embedding has no vector for the last category"""

    def build_model(self):
        model = super().build_model()
        first = model.embeddings[0]
        model.embeddings[0] = nn.Embedding(first.num_embeddings - 1, first.embedding_dim)
        return model


@planted(BUGS, "input_form", "float32", material="regression", outcome="warned")
class Doubles(TabularRegression):
    """numbers are float64, and cast by the model"""

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, "numbers": batch["numbers"].double()}

    def build_model(self):
        model = super().build_model()
        forward = model.forward
        model.forward = lambda numbers, categories: forward(numbers.float(), categories)
        return model


@planted(BUGS, "input_form", "raw pixels", material="digits", outcome="warned")
class RawPixels(ImageClassification):
    """pixels are floats from 0 to 255"""

    def encode(self, rows):
        batch = super().encode(rows)
        pixels = torch.from_numpy(np.stack(rows[self.column].to_numpy())).float()
        return {**batch, "image": pixels.reshape(batch["image"].shape)}


@planted(
    BUGS, "input_form", "shorten the sequence", material="documents", outcome="warned",
    options={"context_length": 256}, settings={"sample_rows": 64},
)  # fmt: skip
class LongContext(CausalLanguageModel):
    """the context is ten times as long as the texts"""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_caught_by_the_check_meant_for_it(bug, workshop):
    require_caught(bug, workshop)


# Copies of rows and imports are planted in data and files.


@pytest.mark.parametrize(
    ("copied", "outcome"),
    [(0.0, "passed"), (0.03, "warned"), (0.1, "failed"), (1.0, "failed")],
)
def test_validation_rows_that_are_training_rows_are_found(copied, outcome, workshop):
    subject = workshop.subject(TabularRegression, "regression")
    kept = subject.validation_rows
    copies = subject.train_rows.head(int(copied * kept.height))
    rows = pl.concat([copies, kept.tail(kept.height - copies.height)])
    result = results_of(replace(subject, validation_rows=rows), "split_overlap")["split_overlap"]
    assert result.outcome == outcome, result
    assert outcome == "passed" or "eduplicate" in result.hint or "was made" in result.hint


def test_texts_that_repeat_by_chance_are_not_copies(workshop):
    result = results_of(workshop.subject(CausalLanguageModel, "documents"), "split_overlap")
    assert result["split_overlap"].outcome == "passed"
    assert result["split_overlap"].evidence["chance"] > 0.1


CARELESS = """
import random
import numpy as np
import torch
from perennial.tasks.tabular import TabularClassification

random.seed(0)
NOISE = np.random.normal(size=3)
torch.manual_seed(1)
torch.set_default_dtype(torch.float64)
torch.use_deterministic_algorithms(True)


class Careless(TabularClassification):
    pass
"""
CHANGED = (
    "random's generator",
    "numpy's global generator",
    "torch's global generator",
    "torch's default type",
    "deterministic algorithms",
)


def test_everything_global_that_an_import_touches_is_named(workshop, tmp_path, monkeypatch):
    file = tmp_path / "careless_task.py"
    file.write_text(CARELESS)
    monkeypatch.syspath_prepend(tmp_path)
    task_type = type("Careless", (TabularClassification,), {"__module__": "careless_task"})
    monkeypatch.setitem(sys.modules, "careless_task", SimpleNamespace(__file__=str(file)))
    subject = workshop.subject(task_type, "binary")
    result = results_of(subject, "import_side_effects")["import_side_effects"]
    assert result.outcome == "warned"
    assert [name for name in CHANGED if name not in result.measured] == []
    assert "inside the task's methods" in result.hint


def test_reference_task_is_imported_without_a_trace(workshop):
    subject = workshop.subject(TabularClassification, "binary")
    result = results_of(subject, "import_side_effects")["import_side_effects"]
    assert result.outcome == "passed", result


def test_task_without_a_module_is_skipped(workshop):
    task_type = type("Typed", (TabularClassification,), {"__module__": "__main__"})
    result = results_of(workshop.subject(task_type, "binary"), "import_side_effects")
    assert result["import_side_effects"].outcome == "skipped"
    assert "no file" in result["import_side_effects"].hint
