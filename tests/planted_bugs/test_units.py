"""Statistics of another unit or column, and pictures of which the model sees next to nothing."""

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from other_styles import Columns, dataset_of
from perennial.check_skeleton.checks.data.values.input_scale import check_input_scale
from perennial.check_skeleton.checks.data.values.lost_values import check_lost_values
from perennial.check_skeleton.subject import Subject
from perennial.data.pictures import decode_picture, encode_png
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL
from skeleton_tables import SETTINGS

SIDE = 6


def rows_of_pictures(rows: int = 400) -> pl.DataFrame:
    """Grey pictures, as lists and files; amounts; windows of warmth and damp, and the next warmth."""
    generator = np.random.default_rng(8)
    grey = generator.integers(0, 181, (rows, SIDE, SIDE)) + generator.integers(0, 76, (rows, 1, 1))
    warm = 15 + 6 * generator.normal(size=(rows, 1)) + generator.normal(size=(rows, 8))
    damp = 21 + 9 * generator.normal(size=(rows, 1)) + generator.normal(size=(rows, 8))
    return pl.DataFrame({
        "row": range(rows),
        "grey": grey.reshape(rows, -1).tolist(),
        "photo": np.stack([grey, grey // 2, 255 - grey], axis=-1).reshape(rows, -1).tolist(),
        "file": [encode_png(each.astype(np.uint8)) for each in grey],
        "cents": np.exp(generator.normal(8, 0.4, rows)).round(),
        "warm": warm.tolist(),
        "damp": damp.tolist(),
        "label": warm[:, -1] + generator.normal(size=rows),
        "skewed": np.exp(generator.normal(0, 2.5, rows)),
        "below": generator.uniform(-1, 0.1, rows),
    })  # fmt: skip


class Net(nn.Module):
    def __init__(self, read):
        super().__init__()
        self.read, self.layer = read, nn.Sequential(nn.Flatten(), nn.LazyLinear(1))

    def forward(self, x):
        return self.layer(self.read(x).float())[:, 0]


def subject_of(folder, column, read, label=lambda y, train: y, into=lambda x: x):
    """A regression on what `read` makes of a column, and `into` makes of that in the model."""

    class Warmth(Columns):
        kind = "regression"

        def fit(self, train):
            self.fitted = {
                each: train.collect()[each].to_list() for each in ("damp", "warm", "label")
            }

        def encode(self, rows):
            names = column.split()
            raw = [files(rows[each]) if each == "file" else rows[each].to_list() for each in names]
            x = torch.from_numpy(np.asarray(read(*map(np.asarray, raw))))
            batch = {"x": x.float() if x.is_floating_point() else x}
            if "label" in rows.columns:
                batch[LABEL] = torch.from_numpy(
                    label(rows["label"].to_numpy().copy(), self.fitted)
                ).float()
            return batch

        def build_model(self):
            net = Net(into)
            net(self.encode(FRAME.head(2))["x"])
            return net

        def losses(self, output, batch):
            return (output - batch[LABEL]) ** 2

        def predict(self, output):
            return output

        def expected_initial_loss(self):
            return 1.0

    dataset = dataset_of(rows_of_pictures(), folder)
    return Subject.prepare(
        lambda: Warmth(Warmth.Options(), dataset.snapshot.task_columns), dataset, SETTINGS,
        TrainingSection(steps=100, global_batch_size=64),
    )  # fmt: skip


def files(column):
    return [decode_picture(each).astype(float) for each in column]


FRAME = rows_of_pictures()
GREY = np.array(FRAME["grey"].to_list()) / 255
SKEWED = FRAME["skewed"].to_numpy()
CENTS = FRAME["cents"].to_numpy()
WARM, DAMP = (np.array(FRAME[each].to_list()) for each in ("warm", "damp"))


def padded(x):
    return np.pad(x.reshape(-1, 1, SIDE, SIDE), ((0, 0), (0, 0), (1, 1), (1, 1)))


def by(numbers, of):
    return (numbers - of.mean()) / of.std()


def both(warm, damp):
    return np.stack([by(warm, WARM), by(damp, DAMP)], axis=-1)


OTHER_UNITS = {
    "pixels by statistics of 0 to 1": ("grey", lambda x: by(x, GREY), "255 times too small"),
    "the same, padded": ("grey", lambda x: padded(by(x, GREY)), "255 times too small"),
    "files by statistics of 0 to 255": ("file", lambda x: by(x / 255, 255 * GREY), "too large"),
    "mean of 0 to 255 alone": ("grey", lambda x: x / 255 - 255 * GREY.mean(), "deviations off"),
    "cents by euros": ("cents", lambda x: by(x, CENTS / 100)[:, None], "98 times too small"),
}  # fmt: skip
UNITS = {
    "standardised": ("grey", lambda x: by(x / 255, GREY)),
    "to 0 and 1": ("grey", lambda x: x / 255),
    "to -1 and 1": ("grey", lambda x: (x / 255 - 0.5) / 0.5),
    "files": ("file", lambda x: padded(by(x / 255, GREY))),
    "as they are": ("grey", lambda x: x),
    "each by its own": ("grey", lambda x: by(x.T, x).T - x.mean(1, keepdims=True)),
    "logarithms of cents": ("cents", lambda x: by(np.log(x), np.log(CENTS))[:, None]),
    "thousands less one": ("cents", lambda x: (x / 100 - 1)[:, None]),
    "between their ends": ("below", lambda x: (x + 1)[:, None] / 1.1),
    "around the median": ("skewed", lambda x: (x - np.median(SKEWED))[:, None] / np.std(SKEWED) * 10),
    "before a year to come": ("cents", lambda x: (x / 1000 - 500)[:, None]),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_UNITS)
def test_statistics_of_another_unit_fail(name, tmp_path):
    column, read, measured = OTHER_UNITS[name]
    result = check_input_scale(subject_of(tmp_path, column, read))
    assert result.outcome == "failed", result.measured
    assert measured in result.measured


@pytest.mark.parametrize("name", UNITS)
def test_other_scales_pass(name, tmp_path):
    column, read = UNITS[name]
    assert check_input_scale(subject_of(tmp_path, column, read)).outcome != "failed"


def test_a_label_by_another_columns_statistics_is_refused(tmp_path):
    result = check_input_scale(
        subject_of(
            tmp_path, "warm damp", both, label=lambda y, train: by(y, np.array(train["damp"]))
        )
    )
    assert result.outcome == "failed"
    assert "the statistics of damp" in result.measured


@pytest.mark.parametrize("label", [
    lambda y, train: by(y, np.array(train["warm"])), lambda y, train: by(y, np.array(train["label"])),
    lambda y, train: (y - 20) / 10, lambda y, train: y,
])  # fmt: skip
def test_a_label_by_its_own_statistics_or_none_is_not_doubted(label, tmp_path):
    assert (
        check_input_scale(subject_of(tmp_path, "warm damp", both, label=label)).outcome == "passed"
    )


def pictures(x):
    return x.reshape(-1, 1, SIDE, SIDE).astype(np.uint8)


@pytest.mark.parametrize(("into", "outcome"), [
    (lambda x: (x // 250).float(), "failed"),
    (lambda x: (x / 245).int(), "failed"),
    (lambda x: x.float() / 255, "passed"),
    (lambda x: (x > 110).float(), "warned"),
    (lambda x: (x // 64).float(), "passed"),
    (lambda x: x.float().log1p(), "passed"),
    (lambda x: x.float()[..., ::2, ::2], "passed"),
])  # fmt: skip
def test_a_model_that_sees_next_to_nothing_of_a_picture_is_refused(into, outcome, tmp_path):
    result = check_lost_values(subject_of(tmp_path, "grey", pictures, into=into))
    assert result.outcome == outcome, result.measured


@pytest.mark.parametrize(("read", "outcome"), [
    (lambda x: padded(x // 250)[..., 1:-1, 1:-1], "failed"),
    (lambda x: padded(x > 127)[..., 1:-1, 1:-1], "warned"),
    (lambda x: padded(x / 255)[..., 1:-1, 1:-1], "passed"),
])  # fmt: skip
def test_pictures_in_files_keep_what_they_show(read, outcome, tmp_path):
    result = check_lost_values(subject_of(tmp_path, "file", read))
    assert result.outcome == outcome, result.measured


LEVELS = np.array([[0.5, 0.2, 0.6], [0.2, 0.1, 0.3]])


def colours(x):
    """Channels first, each standardised by its own statistics."""
    shown = (x.reshape(-1, SIDE, SIDE, 3) - LEVELS[0]) / LEVELS[1]
    return shown.transpose(0, 3, 1, 2)


@pytest.mark.parametrize(("read", "outcome"), [
    (lambda x: colours(x // 255), "failed"),
    (lambda x: colours(x // 255).transpose(0, 1, 3, 2), "failed"),
    (lambda x: colours(x / 255), "passed"),
    (lambda x: colours(x // 16 / 16), "passed"),
    (lambda x: colours(np.minimum(x, 200) / 255), "passed"),
    (lambda x: colours(x / 255)[:, :1], "passed"),
    (lambda x: colours(x > 127), "warned"),
])  # fmt: skip
def test_lists_of_coloured_pictures_keep_what_they_show(read, outcome, tmp_path):
    result = check_lost_values(subject_of(tmp_path, "photo", read))
    assert result.outcome == outcome, result.measured
