"""Bugs of distillation, planted into teachers, each caught before the training."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from perennial.check_skeleton.checks.model.teachers import check_teachers
from perennial.check_skeleton.subject import Teaching, inputs_of
from perennial.contracts.initial_model import Teachers
from perennial.engine.config.distillation import Distillation
from perennial.engine.teachers import load_teachers
from perennial.registry.initial import SeenTestRows
from perennial.tasks.image_classification import ImageClassification
from perennial.tasks.language_modeling import CausalLanguageModel
from perennial.tasks.tabular import TabularClassification, TabularRegression
from taught import pinned, teachers_of

KINDS = {
    "binary": (TabularClassification, "binary"),
    "multiclass": (TabularClassification, "multiclass"),
    "regression": (TabularRegression, "regression"),
}


def trained(subject, task, steps=150):
    """Weights of a model of the task after a short training on the subject's rows."""
    torch.manual_seed(5)
    model, data = task.build_model(), task.encode(subject.train_rows)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        rows = torch.arange(step * 64, step * 64 + 64) % len(data["label"])
        batch = {name: tensor[rows] for name, tensor in data.items()}
        optimizer.zero_grad()
        task.losses(model(**inputs_of(batch)), batch).mean().backward()
        optimizer.step()
    return model.state_dict()


@pytest.fixture(scope="module")
def pupils(workshop):
    """Kind → a subject, and the weights of a teacher of its task; each is trained once."""

    @cache
    def make(kind):
        subject = workshop.subject(*KINDS[kind])
        return subject, trained(subject, subject.task)

    return make


@pytest.fixture
def teach(tmp_path, monkeypatch, workshop):
    """A subject that learns from a teacher with such a task and weights."""
    monkeypatch.setenv("PERENNIAL_CACHE", str(tmp_path / "cache"))

    def run(subject, task, weights, *, kind=None, seen=None, **settings):
        teachers = teachers_of(pinned(tmp_path / "store", task, weights))
        distillation = Distillation(teachers=teachers.asked, **settings)
        snapshot = workshop.dataset(kind).snapshot
        known = Teaching(teachers, distillation, snapshot, seen or SeenTestRows())
        return replace(subject, teaching=known)

    return run


def state_of(task, **changes):
    """The task again, with some of what it fitted changed."""
    other = type(task)(task.options, task.columns)
    other.load_state(task.state() | changes)
    return other


@pytest.mark.parametrize("kind", KINDS)
def test_a_good_teacher_passes(pupils, teach, kind):
    subject, weights = pupils(kind)
    result = check_teachers(teach(subject, subject.task, weights, kind=kind))
    assert result.outcome == "passed", result
    assert result.measured.startswith("big version 1: validation ")


def test_classes_in_another_order_are_put_in_order_by_name(pupils, teach):
    """The teacher has fitted the classes in reverse: its outputs stand for them in reverse, too."""
    subject, weights = pupils("multiclass")
    task = subject.task
    reverse = state_of(task, classes=list(reversed(task.fitted.classes)))
    turned = {
        name: value.flip(0) if name.startswith("output.") else value
        for name, value in weights.items()
    }
    taught = teach(subject, reverse, turned, kind="multiclass")
    assert check_teachers(taught).outcome == "passed"
    plain = teach(subject, task, weights, kind="multiclass")
    rows = subject.train_rows.head(50)
    answers = [
        load_teachers(each.teaching.teachers.members, task, rows)[0].answer(rows)
        for each in (taught, plain)
    ]
    torch.testing.assert_close(*map(torch.from_numpy, answers))


def test_outputs_in_another_order_than_their_names_are_caught(pupils, teach):
    subject, weights = pupils("multiclass")
    wrong = {
        name: value.roll(1, 0) if name.startswith("output.") else value
        for name, value in weights.items()
    }
    result = check_teachers(teach(subject, subject.task, wrong, kind="multiclass"))
    assert result.outcome == "failed", result
    assert "in another order" in result.hint


class Unnamed(TabularClassification):
    """A task that does not name its predictions, as most own tasks."""

    @property
    def prediction_names(self):
        return ()


def test_codes_in_another_order_are_caught_where_classes_have_no_names(workshop, pupils, teach):
    _, weights = pupils("multiclass")
    subject = workshop.subject(Unnamed, "multiclass")
    same = teach(subject, subject.task, weights, kind="multiclass")
    assert check_teachers(same).outcome == "passed"
    reverse = state_of(subject.task, classes=list(reversed(subject.task.fitted.classes)))
    result = check_teachers(teach(subject, reverse, weights, kind="multiclass"))
    assert result.outcome == "failed", result
    assert "has them in another order" in result.measured


def test_an_untrained_teacher_is_caught(pupils, teach):
    subject, _ = pupils("binary")
    torch.manual_seed(9)
    result = check_teachers(
        teach(subject, subject.task, subject.task.build_model().state_dict(), kind="binary")
    )
    assert result.outcome == "failed", result
    assert "does not help" in result.hint


class Standardised(TabularRegression):
    """Encodes the label in standard deviations, where the model has the label's own unit."""

    def encode(self, rows):
        batch, state = super().encode(rows), self.fitted
        batch["label"] = (batch["label"] - state.target_mean) / state.target_scale
        return batch

    def losses(self, output, batch):
        return (output.squeeze(-1) - batch["label"]).square()

    def predict(self, output):
        return output.squeeze(-1)


class Ranked(Standardised):
    """Encodes the label by its order: no factor gives its unit."""

    def encode(self, rows):
        batch = super().encode(rows)
        return batch | {"label": batch["label"].argsort().argsort().float()}


def test_another_unit_of_the_label_is_converted(pupils, teach):
    subject, weights = pupils("regression")
    other = Standardised(subject.task.options, subject.task.columns)
    other.load_state(subject.task.state())
    taught = teach(subject, other, weights, kind="regression")
    assert check_teachers(taught).outcome == "passed"
    rows = subject.train_rows.head(50)
    (teacher,) = load_teachers(taught.teaching.teachers.members, subject.task, rows)
    own = teach(subject, subject.task, weights, kind="regression").teaching.teachers
    expected = load_teachers(own.members, subject.task, rows)[0].answer(rows)
    assert teacher.answer(rows) == pytest.approx(expected, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize(
    ("make", "kind", "problem"),
    [
        (lambda task: Ranked(task.options, task.columns), "regression", "encodes the label in another way"),
        (lambda task: TabularClassification(TabularClassification.Options(), task.columns), "regression", "is of another kind"),
        (
            lambda task: type(task)(task.options, task.columns.model_copy(update={"label": "other"})),
            "binary",
            "predicts another column",
        ),
        (
            lambda task: type(task)(
                task.options,
                task.columns.model_copy(update={"features": task.columns.features | {"gone": "Int64"}}),
            ),
            "binary",
            "reads columns that the data does not have",
        ),
        (
            lambda task: type(task)(
                task.options,
                task.columns.model_copy(
                    update={"features": task.columns.features | {task.columns.label: "Int64"}}
                ),
            ),
            "binary",
            "reads the label",
        ),
    ],
)  # fmt: skip
def test_a_teacher_that_does_not_fit_is_refused_by_name(pupils, teach, make, kind, problem):
    subject, weights = pupils(kind)
    other = make(subject.task)
    if isinstance(other, TabularClassification) and kind == "regression":
        state = subject.task.state() | {"classes": ["0", "1"], "class_shares": [0.5, 0.5]}
        other.load_state(state)
        weights = other.build_model().state_dict()
    else:
        other.load_state(subject.task.state())
    result = check_teachers(teach(subject, other, weights, kind=kind))
    assert result.outcome == "failed", result
    assert f"the teacher big version 1 {problem}" in result.measured


def test_other_classes_are_refused(pupils, teach):
    subject, _ = pupils("multiclass")
    classes = list(subject.task.fitted.classes)
    other = state_of(subject.task, classes=[*classes[:-1], "unheard"])
    weights = other.build_model().state_dict()
    result = check_teachers(teach(subject, other, weights, kind="multiclass"))
    assert "has other classes: only the model has probability_" in result.measured


def test_test_rows_that_the_teacher_was_trained_on_are_caught(pupils, teach):
    subject, weights = pupils("binary")
    seen = SeenTestRows(7, ("the teacher big version 1 was trained or selected on 7 of 90 rows",))
    result = check_teachers(teach(subject, subject.task, weights, kind="binary", seen=seen))
    assert (result.outcome, result.measured) == ("failed", seen.lines[0])
    unknown = SeenTestRows(0, ("it is not known what the teacher was trained on",))
    result = check_teachers(teach(subject, subject.task, weights, kind="binary", seen=unknown))
    assert result.outcome == "warned"


def test_a_temperature_of_a_regression_is_refused(pupils, teach):
    subject, weights = pupils("regression")
    result = check_teachers(
        teach(subject, subject.task, weights, kind="regression", temperature=3.0)
    )
    assert "temperature has no effect" in result.measured


class Probabilities(TabularClassification):
    """Returns probabilities, where the distillation needs logits."""

    def predict(self, output):
        return output.squeeze(-1)


@pytest.mark.parametrize(
    ("task", "material", "problem"),
    [
        (CausalLanguageModel, "documents", "is not for CausalLanguageModel, whose kind is statistic"),
        (Probabilities, "binary", "needs logits, which the output of Probabilities is not"),
    ],
)  # fmt: skip
def test_a_task_that_cannot_learn_from_teachers_is_refused(
    workshop, teach, task, material, problem
):
    subject = workshop.subject(task, material)
    result = check_teachers(teach(subject, subject.task, {}, kind=material))
    assert (result.outcome, problem in result.measured) == ("failed", True), result


@pytest.mark.parametrize(
    ("augmentation", "outcome"), [({"mixup": 0.2}, "failed"), ({"shift": 1}, "warned")]
)
def test_augmentation_that_mixes_rows_is_refused_and_other_named(
    workshop, teach, augmentation, outcome
):
    subject = workshop.subject(
        ImageClassification, "digits", options={"augmentation": augmentation}
    )
    result = check_teachers(
        teach(subject, subject.task, trained(subject, subject.task, 60), kind="digits")
    )
    assert result.outcome == outcome, result


def test_a_teacher_answers_in_evaluation_mode_without_gradients(pupils, teach):
    """Its dropout is off, and no update can reach its weights: what it answers are numbers."""
    subject, weights = pupils("binary")
    options = subject.task.options.model_copy(update={"dropout": 0.9})
    noisy = type(subject.task)(options, subject.task.columns)
    noisy.load_state(subject.task.state())
    rows = subject.train_rows.head(64)
    (teacher,) = load_teachers(
        teach(subject, noisy, weights, kind="binary").teaching.teachers.members, subject.task, rows
    )
    before = {name: value.clone() for name, value in teacher.model.state_dict().items()}
    with torch.enable_grad():
        answers = torch.from_numpy(teacher.answer(rows))
    assert not answers.requires_grad
    assert not any(each.requires_grad for each in teacher.model.parameters())
    model = subject.task.build_model().eval()
    model.load_state_dict(weights)
    batch = subject.task.encode(rows)
    expected = subject.task.predict(model(**inputs_of(batch))).detach()
    torch.testing.assert_close(answers.float(), expected)
    after = teacher.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_nothing_to_learn_from_is_not_applicable(pupils, workshop):
    subject, _ = pupils("binary")
    assert check_teachers(subject).outcome == "skipped"
    none = Teachers(asked=("@champion",), members=())
    snapshot = workshop.dataset("binary").snapshot
    distillation = Distillation(teachers=("@champion",))
    first = Teaching(none, distillation, snapshot, SeenTestRows())
    assert "no champion yet" in check_teachers(replace(subject, teaching=first)).hint
