"""Planted bugs of optimizer, schedule and learning rate: each must be caught by its check."""

from functools import partial

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from other_styles import Binary, dataset_of
from perennial.check_skeleton.checks.training.dynamics import ShortTraining, is_budget_lost, run
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL
from perennial.tasks.image_classification import ImageClassification
from perennial.tasks.language_modeling import CausalLanguageModel
from perennial.tasks.tabular import TabularClassification, TabularRegression
from planted import Bug, planted, require_caught
from skeleton_tables import SETTINGS
from workshop import results_of

BUGS: list[Bug] = []


def with_parameters(model: nn.Module, parameters: list[nn.Parameter]) -> nn.Module:
    """The model with another answer to what is to be trained."""
    model.parameters = lambda recurse=True: iter(parameters)
    return model


# The optimizer


@planted(BUGS, "optimizer_coverage", "leaves them out", material="binary")
class FirstLayerNotOptimized(TabularClassification):
    """the model's parameters() leaves out its hidden layers"""

    def build_model(self):
        model = super().build_model()
        hidden = {id(each) for each in model.hidden.parameters()}
        return with_parameters(
            model, [each for each in model.parameters() if id(each) not in hidden]
        )


@planted(BUGS, "optimizer_coverage", "leaves them out", material="digits")
class HeadOnly(ImageClassification):
    """only the last layer of a picture network that starts at random is given to the optimizer"""

    def build_model(self):
        model = super().build_model()
        return with_parameters(model, list(model.parameters())[-2:])


@planted(BUGS, "optimizer_coverage", "several times", material="multiclass")
class LayerGivenTwice(TabularClassification):
    """the model's parameters() returns its hidden layers a second time"""

    def build_model(self):
        model = super().build_model()
        return with_parameters(model, [*model.parameters(), *model.hidden.parameters()])


@planted(BUGS, "optimizer_coverage", "same nn.Parameter", material="documents")
class TiedByData(CausalLanguageModel):
    """the head shares the embedding's memory, not its parameter"""

    def build_model(self):
        model = super().build_model()
        embedding, head = embedding_and_head(model)
        head.weight = nn.Parameter(embedding.weight.data)
        return model


@planted(BUGS, "optimizer_coverage", "diverge from", material="documents", outcome="warned")
class TiedByCopy(CausalLanguageModel):
    """the head starts as a copy of the embedding that it was meant to be tied to"""

    def build_model(self):
        model = super().build_model()
        embedding, head = embedding_and_head(model)
        head.weight = nn.Parameter(embedding.weight.detach().clone())
        return model


def embedding_and_head(model: nn.Module) -> tuple[nn.Embedding, nn.Linear]:
    """The embedding of tokens, and the linear layer of the same shape."""
    embedding = next(each for each in model.modules() if isinstance(each, nn.Embedding))
    shape = embedding.weight.shape
    heads = (each for each in model.modules() if isinstance(each, nn.Linear))
    return embedding, next(each for each in heads if each.weight.shape == shape)


class CastInside(nn.Module):
    """Weights of eight significant bits behind an interface of float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.to(torch.bfloat16)

    def forward(self, **inputs):
        cast = {n: t.bfloat16() if t.is_floating_point() else t for n, t in inputs.items()}
        return self.model(**cast).float()


@planted(BUGS, "optimizer_coverage", "float32", material="documents")
class ShortWeights(CausalLanguageModel):
    """weights are kept in bfloat16, where small updates are rounded away"""

    def build_model(self):
        return CastInside(super().build_model())


@planted(
    BUGS, "optimizer_coverage", "correct the pattern", material="binary",
    training={"optimizer": {"no_decay": ("transformer.*",)}},
)  # fmt: skip
class ForeignNames(TabularClassification):
    """no_decay names another model's parameters"""


# The schedule


@planted(
    BUGS, "schedule_fit", "steps = 400000 .* another training's length", material="binary",
    training={"schedule": {"steps": 400_000, "allow_other_length": True}},
)  # fmt: skip
class ScheduleOfLargerData(TabularClassification):
    """the schedule's length, and with it the warm-up, is another data set's: longer than all"""


@planted(
    BUGS, "schedule_fit", "continues after the end", material="digits", outcome="warned",
    training={"schedule": {"steps": 3000, "allow_other_length": True}},
)  # fmt: skip
class ScheduleCutOff(ImageClassification):
    """a cosine of another data set's length, of which the training sees the first fifth"""


@planted(
    BUGS, "schedule_fit", "decay ends long before .* another training's", material="documents",
    training={"schedule": {"steps": 60, "allow_other_length": True}},
)  # fmt: skip
class ScheduleOfSmallerData(CausalLanguageModel):
    """the schedule's length is a smaller data set's: zero for most of the budget"""


@planted(
    BUGS, "schedule_fit", "milestones are early", material="digits",
    training={"schedule": {"shape": "step", "milestones": (0.1, 0.2, 0.3, 0.4), "factor": 0.1}},
)  # fmt: skip
class DecayToNothing(ImageClassification):
    """the learning rate is divided by ten four times in the first half of the training"""


@planted(
    BUGS, "schedule_fit", "over when the training has hardly begun", material="digits",
    training={"schedule": {"shape": "step", "milestones": (0.03, 0.06), "factor": 0.1}},
)  # fmt: skip
class MilestonesOfAnotherUnit(ImageClassification):
    """milestones are meant as epochs of a shorter training: a hundredth of the rate is left"""


@planted(
    BUGS, "schedule_fit", "shorten the warm-up", material="documents", outcome="warned",
    training={"schedule": {"warmup_fraction": 0.9}},
)  # fmt: skip
class WarmupWithoutEnd(CausalLanguageModel):
    """the warm-up takes nine tenths of the budget"""


@planted(
    BUGS, "schedule_fit", "larger data set", material="binary", outcome="warned",
    training={"steps": 20_000, "global_batch_size": 1024},
)  # fmt: skip
class BudgetOfLargerData(TabularClassification):
    """the budget is a data set's that is hundreds of times as large"""


@planted(
    BUGS, "schedule_fit", "never used", material="digits", outcome="warned",
    training={"steps": 2, "global_batch_size": 16, "evaluate_every_steps": 1},
)  # fmt: skip
class BudgetOfSmallerData(ImageClassification):
    """the budget ends before most rows are seen"""


@planted(
    BUGS, "schedule_fit", "evaluate five times", material="binary", outcome="warned",
    training={"evaluate_every_steps": 5000},
)  # fmt: skip
class EvaluatedOnce(TabularClassification):
    """the interval between evaluations is longer than the training"""


@planted(
    BUGS, "schedule_fit", "tune the learning rate", material="digits", outcome="warned",
    training={"optimizer": {"name": "sgd", "reference_batch_size": 1}},
)  # fmt: skip
class ScaledTooFar(ImageClassification):
    """the learning rate is scaled from single examples to batches of 64"""


@planted(
    BUGS, "schedule_fit", "need a warm-up", material="digits", outcome="warned",
    training={
        "optimizer": {"name": "sgd", "reference_batch_size": 4},
        "schedule": {"warmup_fraction": 0.0},
    },
)  # fmt: skip
class ScaledWithoutWarmup(ImageClassification):
    """a rate that is scaled up sixteen times is used from the first update"""


@planted(
    BUGS, "schedule_fit", "averaging.warm_up = true", material="binary", outcome="warned",
    training={"averaging": {"decay": 0.999, "warm_up": False}},
)  # fmt: skip
class AveragedBeginning(TabularClassification):
    """the averaged weights remember more updates than there are"""


# The learning rate


@planted(
    BUGS, "first_steps", "too high", material="binary",
    training={"optimizer": {"learning_rate": 0.3}},
)  # fmt: skip
class RateTooHigh(TabularClassification):
    """a learning rate a hundred times too high, of a table"""


@planted(
    BUGS, "first_steps", "too high", material="digits", outcome="warned",
    training={"optimizer": {"learning_rate": 0.3}},
)  # fmt: skip
class RateTooHighForPictures(ImageClassification):
    """a learning rate a hundred times too high, of pictures"""


@planted(
    BUGS, "first_steps", "too high", material="documents",
    training={"optimizer": {"learning_rate": 3.0}},
)  # fmt: skip
class RateTooHighForTexts(CausalLanguageModel):
    """a learning rate a thousand times too high, of texts"""


@planted(
    BUGS, "first_steps", "too high", material="documents",
    training={"optimizer": {"learning_rate": 0.3}},
)  # fmt: skip
class RateThatLearnsTooLittle(CausalLanguageModel):
    """a hundred times too high, of texts: the loss falls, at a tenth of it much further"""


@planted(
    BUGS, "first_steps", "too high", material="regression",
    training={"optimizer": {"name": "sgd", "learning_rate": 9.0}, "clipping": {"method": "none"}},
)  # fmt: skip
class Diverges(TabularRegression):
    """plain gradient descent whose rate makes the loss diverge"""


@planted(
    BUGS, "first_steps", "too low", material="binary",
    training={"optimizer": {"learning_rate": 3e-6}},
)  # fmt: skip
class RateTooLow(TabularClassification):
    """a learning rate a hundred times too low, of a table"""


@planted(
    BUGS, "first_steps", "too low", material="digits",
    training={"optimizer": {"learning_rate": 1e-5}},
)  # fmt: skip
class RateTooLowForPictures(ImageClassification):
    """a learning rate a hundred times too low, of pictures"""


@planted(
    BUGS, "first_steps", "too low", material="documents",
    training={"optimizer": {"learning_rate": 1e-5}},
)  # fmt: skip
class RateTooLowForTexts(CausalLanguageModel):
    """a learning rate a hundred times too low, of texts"""


@planted(
    BUGS, "first_steps", "too low", material="digits",
    training={"optimizer": {"name": "sgd", "learning_rate": 1e-3}},
)  # fmt: skip
class RateOfAdamForDescent(ImageClassification):
    """plain descent at the learning rate of adam: the weights move, and the budget ends long before"""


@planted(
    BUGS, "first_steps", "too low", material="binary",
    training={"optimizer": {"name": "sgd", "learning_rate": 3e-3}},
)  # fmt: skip
class RateOfAdamForDescentOfTables(TabularClassification):
    """the weights move a little, and held-out rows learn nearly nothing of the whole budget"""


# Gradients


@planted(BUGS, "first_steps", "the limit, not the learning rate", material="regression",
         outcome="warned")  # fmt: skip
class UnscaledLoss(TabularRegression):
    """the loss is in the target's own unit, and every gradient is cut down by clipping"""

    def losses(self, output, batch):
        return super().losses(output, batch) * self.fitted.target_scale**2


@planted(BUGS, "first_steps", "outliers", material="regression", outcome="warned")
class Outlier(TabularRegression):
    """one label in a hundred is a thousand times too large"""

    def encode(self, rows):
        batch = super().encode(rows)
        if LABEL in batch:
            is_wrong = torch.from_numpy(rows["row"].to_numpy() % 400 == 0)
            batch[LABEL] = torch.where(is_wrong, 3000 * batch[LABEL], batch[LABEL])
        return batch


@planted(BUGS, "first_steps", "not the measured", material="binary", outcome="warned")
class FlippedByAugmentation(TabularClassification):
    """augmentation turns the labels round, so that the loss that is measured rises"""

    def augment(self, batch, generator):
        return {**batch, LABEL: 1 - batch[LABEL]}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_caught_by_the_check_meant_for_it(bug, workshop):
    require_caught(bug, workshop)


@pytest.mark.parametrize("rate", [0.3, 0.1])
def test_usual_rates_of_plain_descent_pass(rate, workshop):
    training = {"optimizer": {"name": "sgd", "learning_rate": rate, "weight_decay": 5e-4}}
    subject = workshop.subject(ImageClassification, "digits", training=training)
    for name in ("first_steps", "ablation"):
        result = results_of(subject, name)[name]
        assert result.outcome == "passed", result


class LinearInCounts(Binary):
    """Logistic regression on counts of words, most of which are 0."""

    def fit(self, train):
        super().fit(train)
        self.fitted |= {name: [way] * 600 for name, way in (("mean", 0.0), ("std", 1.0))}

    def network(self, outputs):
        return nn.Linear(600, outputs)


@pytest.mark.parametrize(("rate", "outcome"), [(1e-2, "passed"), (1.0, "warned")])
def test_weights_may_grow_where_a_third_of_the_rate_learns_less(rate, outcome, tmp_path):
    """Scores are as long as the weights of a linear model, which start short."""
    generator = np.random.default_rng(0)
    counts = generator.poisson(0.03, (2000, 600)).astype(float)
    label = (counts[:, :40].sum(axis=1) > 1).astype(int)
    columns = {f"word{number:03}": column for number, column in enumerate(counts.T)}
    frame = pl.DataFrame({"row": np.arange(2000), **columns, "label": label})
    dataset = dataset_of(frame, tmp_path / "table")
    make = partial(LinearInCounts, LinearInCounts.Options(), dataset.snapshot.task_columns)
    section = {"steps": 300, "global_batch_size": 64, "optimizer": {"learning_rate": rate}}
    training = TrainingSection.model_validate(section, strict=False)
    subject = Subject.prepare(make, dataset, SETTINGS, training)
    result = results_of(subject, "first_steps")["first_steps"]
    assert result.outcome == outcome, result


def test_what_a_high_rate_memorises_of_noise_is_no_reason_to_raise_the_rate(workshop):
    training = {"steps": 50, "optimizer": {"learning_rate": 2e-4}}
    subject = workshop.subject(TabularClassification, "noise", training=training)
    trial = ShortTraining.of(subject)
    faster, whole = run(subject, trial, 100.0), run(subject, trial, 1.0)
    assert faster.gain > 10 * whole.gain
    assert not is_budget_lost(subject)
