"""Pictures and captions: encoding, losses against theory, and metrics against a plain count."""

import math

import numpy as np
import polars as pl
import pytest
import torch

from captioned_shapes import OPTIONS, SIZE, TASK, captioned_shapes, write_shapes
from perennial.check_skeleton.examination import run_checks
from perennial.contracts.data import Split
from perennial.contracts.errors import BadTaskError, PerennialError
from perennial.data.dataset import Dataset
from perennial.engine.task import LABEL, check_options, inputs_of, load_task
from perennial.tasks.image_text import ImageTextContrastive
from skeleton_tables import prepared


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory):
    return write_shapes(tmp_path_factory.mktemp("shapes"), rows=600)


@pytest.fixture
def task(snapshot):
    made = load_task(TASK, OPTIONS, snapshot.task_columns)
    made.fit(Dataset(snapshot).scan(Split.TRAIN))
    return made


def outputs(task, rows=32, seed=1):
    torch.manual_seed(seed)
    batch = task.encode(captioned_shapes(rows, seed=seed))
    return task.build_model()(**inputs_of(batch)), batch


def test_captions_survive_encoding(task):
    frame = captioned_shapes(5)
    batch = task.encode(frame)
    shown = [task.describe(batch, index)["caption"] for index in range(5)]
    assert shown == frame["caption"].to_list()
    assert batch["image"].shape == (5, 1, SIZE, SIZE)
    shown_pixels = task.picture(batch, 0).ravel().astype(float)
    assert np.corrcoef(shown_pixels, frame["picture"][0].to_numpy())[0, 1] > 0.99


def test_serving_needs_no_captions(task):
    batch = task.encode(captioned_shapes(3).drop("caption"))
    assert set(batch) == {"image"}
    directions = task.predict(task.build_model()(**batch))
    torch.testing.assert_close(directions.norm(dim=1), torch.ones(3))


def test_a_long_caption_is_cut_at_the_limit(task):
    frame = captioned_shapes(1).with_columns(pl.lit("word " * 100).alias("caption"))
    batch = task.encode(frame)
    assert batch["length"].tolist() == [OPTIONS["text"]["length"]]


def test_the_loss_starts_near_the_log_of_the_candidates(task):
    output, batch = outputs(task, rows=64)
    start = float(task.losses(output, batch).detach().mean())
    assert start == pytest.approx(task.expected_initial_loss(), abs=0.5)
    assert task.expected_initial_loss() == pytest.approx(math.log(OPTIONS["candidates"]))


def test_perfect_directions_lose_nothing_and_rank_first(task):
    directions = torch.eye(16)
    output = torch.stack([directions * 100, directions], dim=1)
    batch = {LABEL: torch.zeros(16, dtype=torch.int64)}
    assert float(task.losses(output, batch).max()) < 1e-6
    ranks = task.statistic(output, batch)
    assert ranks.tolist() == [[0.0, 1.0, 0.0, 1.0]] * 16
    assert set(task.score(ranks.numpy(), np.ones(16)).values()) == {1.0}


def test_towers_that_have_collapsed_rank_at_random(task):
    same = torch.ones(16, 2, 16)
    batch = {LABEL: torch.zeros(16, dtype=torch.int64)}
    scores = task.score(task.statistic(same, batch).numpy(), np.ones(16))
    assert scores["recall_at_1"] == pytest.approx(1 / 16)
    assert scores["recall_at_5"] == pytest.approx(5 / 16)
    assert scores["mean_reciprocal_rank"] == pytest.approx(np.mean(1 / np.arange(1, 17)))


def test_ranks_equal_a_plain_count(task):
    output, batch = outputs(task)
    ranks = task.statistic(output.detach(), batch).numpy()
    group = OPTIONS["candidates"]
    for start in range(0, 32, group):
        part = output.detach()[start : start + group]
        products = (part[:, 0] @ part[:, 1].T).numpy()
        for row in range(group):
            best = np.argsort(-products[row], kind="stable")
            assert ranks[start + row, :2].tolist() == [list(best).index(row), 1]


def test_evaluation_does_not_depend_on_how_many_groups_come_at_once(task):
    output, batch = outputs(task, rows=48)
    whole = task.losses(output, batch)
    parts = [
        task.losses(output[start : start + 16], {LABEL: batch[LABEL][start : start + 16]})
        for start in (0, 16, 32)
    ]
    torch.testing.assert_close(torch.cat(parts), whole)
    assert task.scoring_rows % task.scored_together == 0


def test_training_compares_with_the_whole_batch(task):
    output, batch = outputs(task, rows=64)
    alike = torch.ones_like(output) / 4
    assert float(task.training_losses(alike, batch).mean()) == pytest.approx(math.log(64))
    assert float(task.losses(alike, batch).mean()) == pytest.approx(math.log(16))


def test_a_row_that_does_not_count_is_no_candidate(task):
    output, batch = outputs(task, rows=8)
    counted = task.training_losses(output[:7], {LABEL: batch[LABEL][:7]})
    weights = torch.ones(8)
    weights[7] = 0.0
    among = task.training_losses(output, batch | {"weight": weights})
    torch.testing.assert_close(among[:7], counted)
    assert bool(torch.isfinite(among).all())


@pytest.mark.full  # tests/planted_bugs/test_healthy_pictures.py checks the same task
def test_it_passes_the_skeleton_checks_that_apply(snapshot):
    subject = prepared(ImageTextContrastive, Dataset(snapshot), options=OPTIONS)
    results = run_checks(subject)
    left = {each.check: (each.outcome, each.measured, each.hint) for each in results}
    doubted = {check: what for check, what in left.items() if what[0] in ("warned", "failed")}
    assert not doubted
    alone = {check for check, what in left.items() if "scored_together" in what[2]}
    assert alone == {
        *("labels", "label_alignment", "loss_floor", "loss_not_clipped", "class_weights")
    }


def test_a_preset_of_the_other_architecture_is_refused():
    with pytest.raises(PerennialError, match="is not a preset of vit"):
        check_options(ImageTextContrastive, OPTIONS | {"preset": "resnet18"})


def test_patches_must_divide_the_pictures(snapshot):
    made = load_task(TASK, OPTIONS | {"preset": "vit_tiny"}, snapshot.task_columns)
    made.fit(Dataset(snapshot).scan(Split.TRAIN))
    with pytest.raises(BadTaskError, match="cannot be cut into patches"):
        made.build_model()
