"""Judgements that need care: losses with a floor, small models, strange code, borderline data."""

import re

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from perennial.check_skeleton.config import SkeletonSection
from perennial.check_skeleton.examination import run_checks
from perennial.check_skeleton.free_outputs import find_best_constant, find_free_outputs
from perennial.check_skeleton.registry import FOLDER, Judge, check_names, load_checks
from perennial.engine.task import LABEL
from perennial.tasks.tabular import TabularClassification, TabularRegression
from skeleton_tables import SETTINGS, prepared


class LabelSmoothing(TabularClassification):
    def losses(self, output, batch):
        return nn.functional.cross_entropy(
            output, batch[LABEL], reduction="none", label_smoothing=0.1
        )


class Raising(TabularClassification):
    def score(self, predictions, labels):
        raise KeyError("auc")


class FocalLoss(TabularClassification):
    def losses(self, output, batch):
        losses = super().losses(output, batch)
        return (1 - torch.exp(-losses)).square() * losses

    def expected_initial_loss(self):
        return float(np.log(2) / 4)


class WithNoise(TabularClassification):
    def augment(self, batch, generator):
        noise = torch.randn(batch["numbers"].shape, generator=generator)
        return {**batch, "numbers": batch["numbers"] + 0.1 * noise}


class HuberRegression(TabularRegression):
    def losses(self, output, batch):
        target = (batch[LABEL] - self.fitted.target_mean) / self.fitted.target_scale
        return nn.functional.huber_loss(output.squeeze(-1), target, reduction="none")

    def expected_initial_loss(self):
        return 0.38


def doubted(results):
    return {
        check: result.outcome
        for check, result in results.items()
        if result.outcome not in ("passed", "skipped")
    }


@pytest.mark.parametrize(
    ("task_type", "kind", "options", "expected"),
    [
        (LabelSmoothing, "multiclass", {}, {"loss_floor": "warned"}),
        pytest.param(FocalLoss, "binary", {}, {}, marks=pytest.mark.full),
        pytest.param(HuberRegression, "regression", {}, {}, marks=pytest.mark.full),
        pytest.param(WithNoise, "binary", {}, {}, marks=pytest.mark.full),
        (TabularClassification, "binary", {"hidden": []}, {"overfit_one_batch": "warned"}),
        (Raising, "binary", {}, {"metric_direction": "failed", "metric_values": "failed"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_unusual_but_correct_tasks_pass(task_type, kind, options, expected, examine):
    results = examine(task_type, kind, options=options)
    assert doubted(results) == expected, {c: results[c] for c in doubted(results)}


def test_model_too_small_for_a_batch_warns_about_capacity(examine):
    results = examine(
        TabularClassification, "binary", options={"hidden": []}, only="overfit_one_batch"
    )
    assert "parameters get a gradient" in results["overfit_one_batch"].hint


def test_names_read_from_the_source_are_the_declared_checks():
    checks = load_checks()
    assert tuple(check.name for check in checks) == check_names()
    assert len(set(check_names())) == len(check_names())
    first = check_names().index("per_example_losses")
    assert [check.needs_losses for check in checks[:first]] == [False] * first
    assert all(check.needs_losses for check in checks[first + 1 :])


def test_the_readme_names_every_check_and_those_that_only_warn():
    readme = (FOLDER / "README.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", readme, re.M))
    assert set(rows) == set(check_names())
    only_warn = {check.name for check in load_checks() if check.severity == "warn"}
    assert {name for name, text in rows.items() if text.endswith("(only warns)")} == only_warn


def test_a_check_that_is_declared_to_warn_cannot_fail():
    with pytest.raises(ValueError, match="only warns"):
        Judge("import_side_effects", severity="warn").failed("", hint="")


def test_checks_after_a_broken_foundation_are_skipped_by_name(datasets):
    class Scalar(TabularClassification):
        def losses(self, output, batch):
            return super().losses(output, batch).sum()

    settings = SETTINGS.model_copy(update={"severities": {}})
    results = run_checks(prepared(Scalar, datasets("binary"), settings=settings))
    assert [r.check for r in results] == list(check_names())
    after = results[check_names().index("per_example_losses") + 1 :]
    assert {r.outcome for r in after} == {"skipped"}
    assert all("per_example_losses" in r.hint for r in after)


def test_waived_failure_is_kept_in_the_report_and_does_not_block(datasets):
    settings = SETTINGS.model_copy(update={"waivers": {"metric_direction": "scored elsewhere"}})
    (result,) = run_checks(
        prepared(Raising, datasets("binary"), settings=settings), ["metric_direction"]
    )
    assert (result.outcome, result.waived, result.blocks) == ("failed", "scored elsewhere", False)
    assert "KeyError" in result.measured


@pytest.mark.parametrize(
    ("waivers", "message"),
    [
        ({"overfitting": "known"}, "the checks are: .*import_side_effects"),
        ({"encoding": ""}, "at least 1 character"),
        ({"encoding": "  "}, "at least 1 character"),
    ],
)
def test_waivers_need_a_known_check_and_a_reason(waivers, message):
    with pytest.raises(ValidationError, match=message):
        SkeletonSection(waivers=waivers)


def test_results_do_not_depend_on_the_global_generators(datasets):
    names = ("reproducibility", "input_independent_baseline")
    seen = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        results = run_checks(prepared(TabularClassification, datasets("binary")), names)
        seen.append([result.model_copy(update={"seconds": 0.0}) for result in results])
        assert torch.initial_seed() == seed
    assert seen[0] == seen[1]


def test_free_outputs_find_the_prior_the_mean_and_zero_loss(datasets):
    subject = prepared(TabularClassification, datasets("binary", positive=0.2))
    constant, loss = find_best_constant(subject, torch.zeros(4, 1), subject.train)
    share = float(subject.train[LABEL].double().mean())
    entropy = -share * np.log(share) - (1 - share) * np.log(1 - share)
    assert float(torch.sigmoid(constant)) == pytest.approx(share, abs=1e-3)
    assert loss == pytest.approx(entropy, rel=1e-4)

    subject = prepared(TabularRegression, datasets("regression"))
    free = find_free_outputs(subject, torch.zeros(1024, 1), subject.train)
    predicted = subject.task.predict(free.ideal)
    assert free.floor < 1e-6
    assert torch.allclose(predicted, subject.train[LABEL], rtol=1e-2)
