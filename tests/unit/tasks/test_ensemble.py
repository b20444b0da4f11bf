"""An ensemble answers by the mean of its members' predictions, in the form of the first."""

import numpy as np
import polars as pl
import pytest
import torch
from scipy.special import expit

from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import BadTaskError
from perennial.engine.evaluation.scoring import score_in_parts
from perennial.engine.serving.pyfunc import answer, predict_rows, prediction_names
from perennial.engine.task import LABEL, Task, load_task
from perennial.tasks.ensemble import Ensemble, EnsembleOptions, Member
from perennial.tasks.tabular import TabularClassification, TabularRegression

OPTIONS = {"hidden": [4], "dropout": 0.5, "min_category_rows": 1}


def rows(labels) -> pl.DataFrame:
    random = np.random.default_rng(4)
    return pl.DataFrame(
        {
            "a": random.normal(size=60),
            "b": random.choice(["x", "y", "z"], 60),
            "label": [labels[place % len(labels)] for place in range(60)],
        }
    )


def fitted(task_type, frame, features=("a", "b"), seed=1):
    """A task of some features, and a model of it with random weights."""
    types = {"a": "Float64", "b": "String"}
    columns = TaskColumns(label="label", features={name: types[name] for name in features})
    task = load_task(f"{task_type.__module__}:{task_type.__name__}", OPTIONS, columns)
    task.fit(frame.lazy())
    torch.manual_seed(seed)
    model = task.build_model().eval()
    torch.nn.init.normal_(model.output.weight, std=2.0)
    return task, model


def ensemble_of(*parts, **second):
    """The parts as one; `second`: how the second's predictions fit the first's."""
    members = tuple(
        Member(
            title=f"version {number}",
            weights_sha256=str(number),
            task=f"{type(task).__module__}:{type(task).__name__}",
            options=task.options.model_dump(mode="json"),
            columns=task.columns,
            **(second if number else {}),
        )
        for number, (task, _) in enumerate(parts)
    )
    features = {name: kind for task, _ in parts for name, kind in task.columns.features.items()}
    whole = Ensemble(
        EnsembleOptions(members=members), TaskColumns(label="label", features=features)
    )
    whole.load_state({"members": [task.state() for task, _ in parts]})
    model = whole.build_model().eval()
    for own, (_, trained) in zip(model.members, parts, strict=True):
        own.load_state_dict(trained.state_dict())
    return whole, model


def predictions(task, model, frame):
    return predict_rows(task, model, frame.drop("label"))


@pytest.mark.parametrize(
    ("task_type", "labels"),
    [
        (TabularClassification, ["no", "yes"]),
        (TabularClassification, ["low", "mid", "top"]),
        (TabularRegression, [1.0, 2.5, 7.0]),
    ],
)
def test_predictions_are_the_mean_of_members_with_features_of_their_own(task_type, labels):
    frame = rows(labels)
    parts = [fitted(task_type, frame), fitted(task_type, frame.head(30), ("a",), seed=2)]
    whole, model = ensemble_of(*parts)
    expected = np.mean([predictions(*each, frame) for each in parts], axis=0)
    assert predictions(whole, model, frame) == pytest.approx(expected, abs=2e-6)
    assert prediction_names(whole, expected.shape[1]) == prediction_names(
        parts[0][0], expected.shape[1]
    )
    assert (whole.kind, whole.metrics) == (parts[0][0].kind, parts[0][0].metrics)
    assert dict(whole.columns.features) == {"a": "Float64", "b": "String"}


def test_losses_and_metrics_are_those_of_the_mean():
    frame = rows(["no", "yes"])
    parts = [fitted(TabularClassification, frame), fitted(TabularClassification, frame, seed=2)]
    whole, model = ensemble_of(*parts)
    batch = whole.encode(frame)
    scored = score_in_parts(whole, model, batch)
    mean = np.mean([predictions(*each, frame)[:, 0] for each in parts], axis=0)
    labels = batch[LABEL].numpy()
    losses = -np.log(np.where(labels, mean, 1 - mean))
    assert scored.losses == pytest.approx(losses, rel=1e-4)
    metrics = scored.metrics(whole)
    assert metrics["log_loss"] == pytest.approx(losses.mean(), rel=1e-4)
    assert whole.score.__func__ is Task.score  # the fast forms of the metrics are used
    assert whole.describe(batch, 0) == parts[0][0].describe(parts[0][0].encode(frame), 0)


class Worded(TabularClassification):
    """A task that is served as words."""

    def answer_texts(self, predictions, rows):
        assert rows.columns == list(self.columns.features)
        return {"answer": ["yes" if each > 0.5 else "no" for each in predictions[:, 0]]}


def test_texts_are_answered_as_by_the_first_member():
    frame = rows(["no", "yes"])
    parts = [fitted(Worded, frame, ("b",)), fitted(TabularClassification, frame, seed=2)]
    whole, model = ensemble_of(*parts)
    asked = frame.drop("label")
    values = predict_rows(whole, model, asked)
    expected = ["yes" if each > 0.5 else "no" for each in values[:, 0]]
    assert answer(whole, values, asked).to_dict("list") == {"answer": expected}


def test_classes_in_another_order_and_other_units_are_put_in_the_first_ones():
    frame = rows(["low", "mid", "top"])
    one, other = fitted(TabularClassification, frame), fitted(TabularClassification, frame, seed=2)
    whole, model = ensemble_of(one, other, order=(2, 0, 1))
    expected = (predictions(*one, frame) + predictions(*other, frame)[:, [2, 0, 1]]) / 2
    assert predictions(whole, model, frame) == pytest.approx(expected, abs=2e-6)
    frame = rows([1.0, 2.5, 7.0])
    one, other = fitted(TabularRegression, frame), fitted(TabularRegression, frame, seed=2)
    whole, model = ensemble_of(one, other, unit=(10.0, -3.0))
    expected = (predictions(*one, frame) + 10.0 * predictions(*other, frame) - 3.0) / 2
    assert predictions(whole, model, frame) == pytest.approx(expected, rel=1e-5)


def test_certain_predictions_stay_finite():
    frame = rows(["no", "yes"])
    task, model = fitted(TabularClassification, frame)
    with torch.no_grad():
        model.output.weight.zero_()
        model.output.bias.fill_(500.0)
    whole, both = ensemble_of((task, model), (task, model))
    scored = score_in_parts(whole, both, whole.encode(frame))
    assert np.isfinite(scored.losses).all()
    assert scored.predictions == pytest.approx(np.full(60, expit(87.0)), abs=1e-6)


class Exponential(TabularRegression):
    """Predicts the exponential of its output: no mean of outputs gives a mean of predictions."""

    def predict(self, output):
        return super().predict(output).exp()


def test_a_prediction_that_is_no_multiple_of_the_output_is_refused_by_name():
    frame = rows([1.0, 2.0])
    plain = fitted(TabularRegression, frame)
    task = Exponential(plain[0].options, plain[0].columns)
    task.load_state(plain[0].state())
    whole, model = ensemble_of((plain[0], plain[1]), plain)
    whole.tasks[0] = task
    with pytest.raises(BadTaskError, match="Exponential cannot be averaged"):
        model(**{n: t for n, t in whole.encode(frame).items() if n != LABEL})
