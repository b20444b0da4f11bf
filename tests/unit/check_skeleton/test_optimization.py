"""Optimizer, schedule and first updates: results for contracts that are right, or nearly."""

from dataclasses import replace

import pytest
from torch import nn

from perennial.check_skeleton.checks.training.dynamics import ShortTraining, check_first_steps
from perennial.check_skeleton.checks.training.optimization import (
    check_optimizer_coverage,
    check_schedule_fit,
)
from perennial.check_skeleton.verdict import CURVES, PREDICTION_PATHS
from perennial.engine.config.training import TrainingSection
from perennial.tasks.tabular import TabularClassification, TabularRegression
from skeleton_tables import TRAINING, prepared


class SharedLayer(TabularClassification):
    """Uses one parameter in two places, as ties should be made."""

    def build_model(self):
        model = super().build_model()
        layers = [each for each in model.modules() if isinstance(each, nn.Linear)]
        model.again = nn.Linear(*reversed(layers[-1].weight.shape))
        model.again.weight, model.again.bias = layers[-1].weight, layers[-1].bias
        return model


class FrozenEmbedding(TabularClassification):
    """Keeps one layer as it is, and declares it frozen."""

    def build_model(self):
        model = super().build_model()
        next(model.parameters()).requires_grad_(False)
        return model


class Frozen(TabularClassification):
    def build_model(self):
        return super().build_model().requires_grad_(False)


class WritesItsOptimizer(TabularClassification):
    """As a LightningModule does."""

    def written_training(self):
        return {
            "optimizer": {"name": "sgd", "learning_rate": 0.2, "momentum": 0.9},
            "clipping": {"method": "none"},
        }


class Detached(TabularClassification):
    def losses(self, output, batch):
        return super().losses(output.detach(), batch)


def subject_of(datasets, task_type=TabularClassification, kind="binary", **training):
    section = TrainingSection.model_validate({**TRAINING, **training}, strict=False)
    return prepared(task_type, datasets(kind), training=section)


@pytest.mark.parametrize("task_type", [SharedLayer, FrozenEmbedding])
def test_tied_and_frozen_weights_are_not_missing_from_the_optimizer(task_type, datasets):
    result = check_optimizer_coverage(subject_of(datasets, task_type))
    assert result.outcome == "passed", result.measured


@pytest.mark.parametrize("name", ["adamw", "adam", "nadam", "sgd", "adafactor"])
def test_every_optimizer_moves_every_parameter(name, datasets):
    result = check_optimizer_coverage(subject_of(datasets, optimizer={"name": name}))
    assert result.outcome == "passed", result.measured


def test_another_optimizer_than_the_codes_own_is_a_warning_with_the_lines_to_write(datasets):
    result = check_optimizer_coverage(subject_of(datasets, WritesItsOptimizer))
    assert result.outcome == "warned"
    assert "name sgd (adamw), learning_rate 0.2 (" in result.measured
    written = 'optimizer = { name = "sgd", learning_rate = 0.2, momentum = 0.9 }'
    assert f'{written}; clipping = {{ method = "none" }}' in result.hint


def test_the_optimizer_that_the_code_writes_passes(datasets):
    written = {"name": "sgd", "learning_rate": 0.2, "momentum": 0.9, "nesterov": True}
    result = check_optimizer_coverage(subject_of(datasets, WritesItsOptimizer, optimizer=written))
    assert result.outcome == "passed", result.measured


@pytest.mark.parametrize("check", [check_optimizer_coverage, check_first_steps])
def test_task_without_trainable_parameters_is_skipped(check, datasets):
    result = check(subject_of(datasets, Frozen))
    assert (result.outcome, "parameter_gradients" in result.hint) == ("skipped", True)


def test_a_loss_without_gradient_is_left_to_the_gradients(datasets):
    result = check_first_steps(subject_of(datasets, Detached))
    assert (result.outcome, "no gradient" in result.hint) == ("skipped", True)


def test_optimizer_that_cannot_be_built_is_skipped(datasets):
    result = check_first_steps(subject_of(datasets, optimizer={"no_decay": ("other.*",)}))
    assert (result.outcome, "matches no parameter" in result.hint) == ("skipped", True)


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"schedule": {"shape": "constant"}},
        {"schedule": {"shape": "step"}},
        {"schedule": {"shape": "linear", "warmup_fraction": 0.33}},
        {"schedule": {"shape": "wsd"}},
        {"schedule": {"shape": "one_cycle"}},
        {"schedule": {"shape": "wsd", "steps": 4000, "allow_other_length": True}},
        {"averaging": {"decay": 0.999}},
        {"optimizer": {"name": "sgd", "reference_batch_size": 32}},
        {"steps": 20, "evaluate_every_steps": 5},
    ],
    ids=str,
)
def test_usual_schedules_fit(training, datasets):
    result = check_schedule_fit(subject_of(datasets, **training))
    assert result.outcome == "passed", result.measured


def test_epochs_count_the_whole_split_not_the_sample(datasets):
    subject = subject_of(datasets)
    assert subject.train_split_rows > subject.num_rows()
    few = replace(subject, train_split_rows=10_000_000)
    assert check_schedule_fit(subject).outcome == "passed"
    assert "of an epoch" in check_schedule_fit(few).measured


def test_the_page_gets_losses_and_predictions_step_by_step(datasets):
    result = check_first_steps(subject_of(datasets, TabularRegression, "regression"))
    assert result.outcome == "passed", result.measured
    curves, paths = result.evidence[CURVES], result.evidence[PREDICTION_PATHS]
    assert [len(line) for line in curves.values()] == [50, 6]
    assert curves["fixed examples"][-1][1] < curves["fixed examples"][0][1]
    assert {tuple(step for step, _ in line) for line in paths.values()} == {
        (0.0, 10.0, 20.0, 30.0, 40.0, 50.0)
    }
    assert all("label" in name for name in paths)


def test_a_long_warmup_is_shortened_and_a_smaller_batch_has_a_smaller_rate(datasets):
    subject = subject_of(datasets, schedule={"warmup_fraction": 0.5}, global_batch_size=256)
    trial = ShortTraining.of(subject).training
    assert trial.schedule.steps == 50
    assert trial.global_batch_size == 64
    assert trial.optimizer.peak_rate(64) == pytest.approx(3e-4 / 2)


def test_a_budget_shorter_than_the_first_steps_is_all_that_is_tried(datasets):
    result = check_first_steps(subject_of(datasets, steps=7, evaluate_every_steps=2))
    assert len(result.evidence[CURVES]["batch"]) == 7
