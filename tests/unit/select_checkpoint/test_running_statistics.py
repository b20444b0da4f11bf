"""Averaged weights get the running statistics that their own forward passes have."""

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

from perennial.contracts.data import DataSection, Split, SplitSection
from perennial.data.dataset import Dataset
from perennial.engine.config.training import TrainingSection
from perennial.engine.evaluation.running_statistics import (
    BATCH_ROWS,
    normalizations,
    recompute_statistics,
    sampled_rows,
    training_batches,
)
from perennial.engine.optimization.parameters import freeze
from perennial.engine.task import load_task
from perennial.snapshot_data.manifest import take_snapshot
from small_models import stream, write_snapshot

PIXELS, CLASSES = 8, 3


class Network(nn.Module):
    """Two normalisations, one behind the other, one of another kind, and dropout."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, momentum=0.3), nn.ReLU(), nn.Dropout(dropout),
            nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LayerNorm(64),
            nn.BatchNorm1d(64, track_running_stats=False), nn.Linear(64, CLASSES),
        )  # fmt: skip

    def forward(self, image):
        return self.body(image)


def network(dropout=0.0):
    torch.manual_seed(0)
    return Network(dropout).eval()


@pytest.fixture(scope="module")
def batches():
    torch.manual_seed(1)
    return [{"image": 2 + torch.randn(16, 1, PIXELS, PIXELS)} for _ in range(5)]


def test_they_are_those_that_pytorch_takes(batches):
    ours, theirs = network(), network()
    recompute_statistics(ours, batches)
    update_bn([batch["image"] for batch in batches], theirs)
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name
    assert [each.momentum for each in normalizations(ours)] == [0.3, 0.1]
    assert not any(module.training for module in ours.modules())


def test_dropout_stays_off(batches):
    plain, dropping = network(), network(dropout=0.5)
    recompute_statistics(plain, batches)
    recompute_statistics(dropping, batches)
    assert all(map(torch.equal, plain.buffers(), dropping.buffers()))


def test_only_normalisations_that_keep_statistics_count():
    assert len(normalizations(network())) == 2
    assert normalizations(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))) == []


def test_rows_are_drawn_from_the_whole_training_split_and_shuffled(tmp_path):
    snapshot = write_snapshot(tmp_path / "data", stream())
    everything = Dataset(snapshot).scan(Split.TRAIN).collect()
    some, again = (sampled_rows(Dataset(snapshot), 200) for _ in range(2))
    assert some.equals(again)
    assert some.height == 200
    assert some["row"].n_unique() == 200
    assert set(some["row"]) <= set(everything["row"])
    assert not some["row"].is_sorted()
    ranks = np.searchsorted(everything["row"], some["row"]) / everything.height
    assert np.histogram(ranks, bins=4, range=(0, 1))[0].min() > 30
    assert sampled_rows(Dataset(snapshot)).height == everything.height


def test_batches_are_encoded_augmented_and_never_of_one_row(tmp_path):
    random = np.random.default_rng(0)
    count = BATCH_ROWS + 1
    pixels = pl.Series("image", random.integers(0, 255, (count, 4)).tolist(), pl.List(pl.UInt8))
    frame = pl.DataFrame(
        {"id": range(count), "image": pixels, "label": random.integers(0, 2, count)}
    )
    (tmp_path / "data").mkdir()
    frame.write_parquet(tmp_path / "data" / "part.parquet")
    data = DataSection(uri=str(tmp_path / "data"), label="label", ids=("id",))
    snapshot = take_snapshot(data, SplitSection())
    options = {"shape": [2, 2], "augmentation": {"noise": 1.0}}
    task = load_task(
        "perennial.tasks.image_classification:ImageClassification", options, snapshot.task_columns
    )
    task.fit(frame.lazy())
    first, again = (list(training_batches(task, frame, torch.device("cpu"))) for _ in range(2))
    assert [len(batch["image"]) for batch in first] == [257, 256]
    assert all(torch.equal(a["image"], b["image"]) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0]["image"], task.encode(frame[:257])["image"])


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("is_part_frozen", [True, False])
def test_a_normalisation_without_parameters_belongs_to_the_part_around_it(
    batches, *, affine, is_part_frozen
):
    """What a training keeps, rescoring keeps."""
    part = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Sequential(nn.BatchNorm2d(4, affine=affine), nn.ReLU())
    )
    model = nn.Sequential(part, nn.Flatten(), nn.Linear(144, CLASSES))
    pattern = "0.*" if is_part_frozen else "2.*"
    freeze(model, TrainingSection(frozen=(pattern,)))
    norm = part[1][0]
    model.train()
    model(batches[0]["image"])
    assert torch.equal(norm.running_mean, torch.zeros(4)) is is_part_frozen
    loaded = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, affine=affine)),
        nn.Flatten(), nn.Linear(144, CLASSES),
    )  # fmt: skip
    loaded[0][0].requires_grad_(not is_part_frozen)
    if affine:
        loaded[0][1].requires_grad_(not is_part_frozen)
    assert normalizations(loaded) == ([] if is_part_frozen else [loaded[0][1]])


def test_frozen_ones_and_those_that_a_model_keeps_in_evaluation_mode_stay(batches):
    class Fixed(Network):
        def train(self, mode=True):
            super().train(mode)
            self.body[1].eval()
            return self

    frozen, fixed = network(), Fixed().eval()
    frozen.body[1].requires_grad_(False)
    for model in (frozen, fixed):
        recompute_statistics(model, batches)
        assert normalizations(model) == [model.body[5]]
        assert not any(module.training for module in model.modules())
        assert torch.equal(model.body[1].running_mean, torch.zeros(4))
        assert int(model.body[5].num_batches_tracked) == len(batches)


def test_those_of_a_synchronised_normalisation_are_computed_again(batches):
    """`nn.SyncBatchNorm`, of models that were written for several GPUs."""
    own = nn.SyncBatchNorm.convert_sync_batchnorm(network())
    recompute_statistics(own, batches)
    expected = network()
    recompute_statistics(expected, batches)
    for name, value in expected.state_dict().items():
        assert torch.equal(own.state_dict()[name], value), name
