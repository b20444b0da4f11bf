"""Healthy tasks in other people's styles: no check may block them, each is measured in full."""

from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import other_structures as structures
import other_styles as styles
from other_styles import dataset_of, numbers_table, table_of
from perennial.check_skeleton.examination import run_checks
from perennial.check_skeleton.registry import check_names
from perennial.check_skeleton.subject import Subject
from perennial.contracts.data import Split
from perennial.contracts.errors import BadDataError
from perennial.engine.config.training import TrainingSection
from skeleton_tables import SETTINGS

X, SCORE = numbers_table()
GENERATOR = np.random.default_rng(1)
THIRDS = np.digitize(SCORE, np.quantile(SCORE, [0.33, 0.66]))
NAMES = np.array(["low", "mid", "high"])[THIRDS].tolist()
SIGN = (SCORE > 0).astype(int)
AHEAD = SCORE[:, None] + GENERATOR.normal(size=(len(SCORE), 4)) * np.sqrt([1, 2, 3, 4])
RARE = np.digitize(SCORE, np.quantile(SCORE, [0.8, 0.95]))
FEW = numbers_table(178, 13)
MANY = numbers_table(4000)
FACTORS = X @ GENERATOR.normal(size=(6, 12))
GAPS = np.where(GENERATOR.random(X.shape) < 0.1, np.nan, X)
COUNTS = GENERATOR.poisson(np.exp(SCORE / 2 + 1))
LIVES = np.round(GENERATOR.exponential(np.exp(-SCORE / 3)) + 0.05, 1)


def listed(values):
    """Several numbers in one text, as tags and horizons are often stored."""
    return [" ".join(map(str, row)) for row in values.tolist()]


def case(task_type, label, x=X, **how):
    return task_type, table_of(x, label, **how.pop("more", {})), how


# Name → task, table, and how it is examined: `data`, `training`, and the checks that may warn.
DEFAULT = {
    "text labels": case(styles.Classes, NAMES),
    "softmax and logarithm": case(styles.SoftmaxInTheModel, THIRDS),
    "a mean and a variance": case(styles.GaussianLikelihood, 50 + 10 * SCORE),
    "class weights while training": case(styles.WeightedTraining, RARE),
    "178 rows": case(styles.Classes, np.digitize(FEW[1], [-1, 1]), FEW[0]),
    "several targets": case(
        structures.TwoTargets, np.round(SCORE), more={"second": AHEAD[:, 1]},
        data={"meta": ("second",)}, doubted={"few_rows"},
    ),
    "denoiser": case(structures.Denoiser, THIRDS, FACTORS),
}  # fmt: skip
MORE = {
    "categories as labels": case(styles.Classes, pl.Series(NAMES, dtype=pl.Categorical)),
    "log_softmax and nll_loss": case(styles.LogSoftmaxInTheModel, THIRDS),
    "sigmoid and BCELoss": case(styles.SigmoidInTheModel, SIGN),
    "a head for training alone": case(styles.TwoHeads, THIRDS),
    "train() that returns nothing": case(styles.ForgetfulTrain, THIRDS),
    "packed sequences": (structures.Words, structures.reviews(), {}),
    "quantiles of four hours": case(
        structures.QuantileForecast, listed(AHEAD.round(2)),
        doubted={"initial_bias"},
    ),
    "boolean labels": case(styles.Binary, SCORE > 0),
    "two texts as labels": case(styles.Binary, np.where(SCORE > 0, "yes", "no").tolist()),
    "dates as labels": case(styles.Classes, pl.Series(THIRDS).cast(pl.Int32).cast(pl.Date)),
    "floats as labels": case(styles.Classes, THIRDS.astype(float)),
    "200 classes": case(styles.Classes, np.argsort(np.argsort(MANY[1])) // 20, MANY[0]),
    "one in a hundred": case(
        styles.Binary, (np.quantile(SCORE, 0.99) < SCORE).astype(int),
        doubted={"initial_bias", "input_independent_baseline"},
    ),
    "focal loss": case(styles.FocalLoss, THIRDS),
    "smoothed labels": case(styles.SmoothedLoss, THIRDS, doubted={"loss_floor"}),
    "cosines at a fixed temperature": case(styles.CosineClassifier, THIRDS),
    "a margin on the angle": case(styles.AngularMargin, THIRDS, doubted={"initial_bias"}),
    "a teacher for training alone": case(styles.Taught, THIRDS),
    "a mean and a variance of two layers": case(
        styles.SeparateHeads, 50 + 10 * SCORE, doubted={"loss_floor"}
    ),
    "times known in part": case(
        styles.TimesInPart, np.where(GENERATOR.random(len(SCORE)) < 0.3, -LIVES, LIVES),
        doubted={"predictions", "loss_floor", "initial_bias"},
    ),
    "half stars through a sigmoid": case(
        styles.SigmoidRange, np.clip(np.round(6 + SCORE) / 2, 1, 5)
    ),
    "close labels": case(styles.Numbers, np.floor(SCORE / 2) * 9 + X[:, 5] / 1e3),
    "ordinal": case(styles.Ordinal, THIRDS),
    "batch norm without momentum": case(styles.BatchNormalised, THIRDS),
    "batch norm with a small momentum": case(styles.SlowlyNormalised, THIRDS),
    "class weights, one in twenty": case(
        styles.WeightedTraining, (np.quantile(SCORE, 0.95) < SCORE).astype(int),
        doubted={"ablation"},  # such weights do make the plain log loss worse
    ),
    "outputs for training alone": case(styles.AuxiliaryHead, THIRDS),
    "squared error of the probability": case(
        styles.BrierLoss, SIGN, doubted={"loss_not_clipped"}
    ),
    "hinge": case(styles.HingeLoss, SIGN),
    "distances of pairs": case(styles.Distances, SIGN),
    "absolute error": case(styles.AbsoluteError, 50 + 10 * SCORE),
    "huber": case(styles.HuberLoss, 50 + 10 * SCORE),
    "three quantiles": case(styles.Pinball, 50 + 10 * SCORE, doubted={"initial_bias"}),
    "a positive deviation": case(
        styles.GaussianWithSoftplus, 50 + 10 * SCORE, doubted={"initial_bias", "loss_floor"}
    ),
    "counts": case(styles.Counts, COUNTS),
    "rates": case(styles.CountsByExp, COUNTS),
    "slopes of an energy": case(styles.SlopesOfEnergy, 50 + 10 * SCORE),
    "positive factors": case(styles.PositiveFactors, COUNTS),
    "scattered counts": case(
        styles.ScatteredCounts, COUNTS, doubted={"loss_floor", "initial_bias"}
    ),
    "logarithms of prices": case(styles.LogTarget, 3e5 * np.exp(SCORE / 2)),
    "prices": case(styles.RawPrices, 3e5 * np.exp(SCORE / 2), doubted={"first_steps"}),
    "ratings through a sigmoid": case(
        styles.SigmoidRange, np.clip(np.round(3 + SCORE / 2), 1, 5)
    ),
    "a rule without noise": case(styles.Classes, np.digitize(1.5 * X[:, 0] - X[:, 1], [0])),
    "one column, one curve": case(styles.Numbers, np.sin(2 * X[:, 0]), X[:, :1]),
    "tiny clipping limit": case(
        styles.Classes, THIRDS, training={"clipping": {"max_norm": 0.01}}
    ),
    "plain descent at 0.1": case(
        styles.Classes, THIRDS, training={"optimizer": {"name": "sgd", "learning_rate": 0.1}}
    ),
    "one length": (
        structures.FixedLength, structures.reviews(),
        {"doubted": {"first_steps", "padding_independence"}},
    ),
    "minus infinity as mask": (
        structures.AddsInfinity, structures.reviews(),
        {"doubted": {"first_steps", "overfit_one_batch"}},
    ),
    "characters": (
        structures.Characters, structures.reviews().select("row", label=pl.col("review")),
        {"data": {"text": ("label",), "features": ("label",)}},
    ),
    "tags": case(structures.MultiLabel, listed((AHEAD > 0).astype(int))),
    "survival": case(
        structures.Survival, LIVES, more={"second": (AHEAD[:, 0] > -1).astype(int)},
        data={"meta": ("second",)},
        doubted={"few_rows", "loss_floor", "input_independent_baseline"},
    ),
    "autoencoder": case(structures.Autoencoder, THIRDS, FACTORS),
    "missing values replaced in the model": case(
        structures.FillsGaps, 50 + 10 * SCORE, GAPS, doubted={"input_scale"}
    ),
    "sixteen experts": case(structures.Experts, THIRDS, doubted={"parameter_gradients"}),
    "codebook": case(structures.Quantised, THIRDS),
    "low-rank adapters": case(
        structures.Adapted, THIRDS, doubted={"parameter_gradients", "overfit_one_batch"}
    ),
    "spectral norm, own gradient, recomputation": case(structures.Constrained, THIRDS),
    "mixed rows": case(structures.MixUp, SIGN),
    "groups of classes": case(styles.Hierarchy, NAMES),
    "zero-inflated amounts": case(
        styles.ZeroInflated, np.where(SCORE > 0, np.exp(1 + SCORE / 2).round(2), 0.0),
        doubted={"loss_floor", "initial_bias", "input_independent_baseline"},
    ),
    "recommender": (structures.Ratings, structures.ratings(), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFAULT)
def test_tasks_in_other_styles_are_not_blocked(name, tmp_path):
    # A fresh process takes a second; the longer list starts one for each task.
    checks = [name for name in check_names() if name != "fresh_encoding"]
    require_unblocked(DEFAULT[name], tmp_path, checks)


@pytest.mark.parametrize("name", ["groups of classes", "zero-inflated amounts"])
def test_outputs_that_only_the_model_or_the_loss_bounds_are_searched_within(name, tmp_path):
    checks = ["initial_loss", "predictions", "overfit_one_batch"]
    require_unblocked(MORE[name], tmp_path, checks)


def test_a_floor_below_zero_by_rounding_is_zero(tmp_path):
    require_unblocked(case(styles.DivergenceFromShares, THIRDS), tmp_path, ["loss_floor"])


def test_layers_within_a_transform_of_torch_func_are_no_exceptions(tmp_path):
    require_unblocked(MORE["slopes of an energy"], tmp_path, ["activations", "modes"])


def test_outputs_that_are_positive_under_every_sign_are_searched_above_zero(tmp_path):
    require_unblocked(MORE["positive factors"], tmp_path, ["loss_floor", "predictions"])


def test_a_likelihood_that_overflows_far_out_still_has_a_minimum(tmp_path):
    require_unblocked(MORE["scattered counts"], tmp_path, ["loss_floor"])


def test_the_likelihood_of_small_counts_may_have_a_floor(tmp_path):
    small = np.random.default_rng(0).poisson(np.exp(SCORE / 2 - 1.5))
    require_unblocked(case(styles.Counts, small), tmp_path, ["loss_floor"])


@pytest.mark.full
@pytest.mark.parametrize("name", [*DEFAULT, *MORE])
def test_no_check_blocks_tasks_in_other_styles(name, tmp_path):
    require_unblocked((DEFAULT | MORE)[name], tmp_path, ())


def test_too_few_rows_are_rejected_with_advice(tmp_path):
    x, score = numbers_table(90)
    with pytest.raises(BadDataError) as refused:
        prepared(styles.Numbers, dataset_of(table_of(x, score), tmp_path), {})
    assert "validation" in refused.value.problem
    assert "split.validation_fraction = 0." in refused.value.action


def prepared(task_type, dataset, training) -> Subject:
    values = {"seed": 1, "steps": 400, "global_batch_size": 128, **training}
    return Subject.prepare(
        partial(task_type, task_type.Options(), dataset.snapshot.task_columns), dataset, SETTINGS,
        TrainingSection.model_validate(values, strict=False),
    )  # fmt: skip


def require_unblocked(examined, folder: Path, checks) -> None:
    """Nothing fails or goes unmeasured, and only those warn that may."""
    task_type, frame, how = examined
    dataset = dataset_of(frame, folder, **how.get("data", {}))
    assert dataset.snapshot.split_rows[Split.TRAIN]
    results = run_checks(prepared(task_type, dataset, how.get("training", {})), checks)
    doubted = {
        result.check: (result.outcome, result.measured, result.hint)
        for result in results
        if result.outcome == "failed"
        or result.is_unmeasured
        or (result.outcome == "warned" and result.check not in how.get("doubted", ()))
    }
    assert doubted == {}
