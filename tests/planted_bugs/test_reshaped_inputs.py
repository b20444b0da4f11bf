"""Axes that were to change places, and numbers that were reshaped in their stead."""

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from other_styles import Classes, Module, dataset_of
from perennial.check_skeleton.checks.data.encoding.encoding import check_encoding
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL
from skeleton_tables import SETTINGS

SIDE, HOURS = 12, 8


def rows_of_shapes(rows: int = 300) -> pl.DataFrame:
    """Coloured squares, as one list and by channel; three series of a day beside each other."""
    generator = np.random.default_rng(6)
    pictures, series = [], []
    for _ in range(rows):
        y, x, size = generator.integers(1, 5, 3)
        picture = np.full((SIDE, SIDE, 3), generator.integers(0, 90, 3))
        picture[y : y + size + 2, x : x + size + 2] = generator.integers(120, 250, 3)
        pictures.append(np.clip(picture + generator.normal(0, 4, picture.shape), 0, 255))
        start = generator.normal(0, 3, 3)
        series.append(start[:, None] + generator.normal(0, 1, (3, HOURS)).cumsum(axis=1))
    return pl.DataFrame({
        "row": range(rows),
        "hwc": [each.ravel().tolist() for each in pictures],
        "chw": [each.transpose(2, 0, 1).ravel().tolist() for each in pictures],
        "days": [each.T.tolist() for each in series],
        **{name: [each[place].tolist() for each in series] for place, name in enumerate("abc")},
        "label": generator.integers(0, 2, rows),
    })  # fmt: skip


def with_flags(series):
    """Beside the series, whether it is low [N, 2, T]."""
    return np.stack([np.exp(series / 9), series < 0], axis=1)


def with_hours(series):
    """Beside the series about its mean, the hour [N, 2, T]."""
    hours = np.broadcast_to(np.sin(np.arange(HOURS) / 2), series.shape)
    return np.stack([series - series.mean(axis=1, keepdims=True), hours], axis=1)


def subject_of(folder, columns, read, *, width=None, layers=None, rows=None):
    """A task that feeds what `read` makes of columns, the first linear layer of a given width."""

    class Shaped(Classes):
        def fit(self, train):
            self.fitted = self.fit_label(train.collect()["label"])

        def encode(self, rows):
            raw = [np.array(rows[each].to_list()) for each in columns]
            batch = {"x": torch.from_numpy(np.ascontiguousarray(read(*raw))).float()}
            if "label" in rows.columns:
                batch[LABEL] = self.encode_label(rows["label"])
            return batch

        def build_model(self):
            first = [nn.Linear(width, 4)] if width else []
            return Module(nn.Sequential(*(layers() if layers else [*first, nn.Flatten()])))

    dataset = dataset_of(rows_of_shapes() if rows is None else rows, folder)
    return Subject.prepare(
        lambda: Shaped(Shaped.Options(), dataset.snapshot.task_columns), dataset, SETTINGS,
        TrainingSection(steps=100, global_batch_size=64),
    )  # fmt: skip


def standardised(x):
    return (x - 120) / np.array([50.0, 60.0, 70.0])[:, None, None]


def grainy(x):
    """Pictures with noise that depends on their own numbers alone."""
    return x + 45 * np.sin(12345.678 * x)


MISTAKES = {
    "channels first by reshape": (
        ["hwc"], lambda x: x.reshape(-1, 3, SIDE, SIDE) / 255, "order 12 x 12 x 3"
    ),
    "the same, normalised by channel behind it": (
        ["hwc"], lambda x: standardised(x.reshape(-1, 3, SIDE, SIDE)), "order 12 x 12 x 3"
    ),
    "grainy pictures": (
        ["hwc"], lambda x: grainy(x).reshape(-1, 3, SIDE, SIDE) / 255, "order 12 x 12 x 3"
    ),
    "channels last by reshape": (
        ["chw"], lambda x: x.reshape(-1, SIDE, SIDE, 3) / 255, "order 3 x 12 x 12"
    ),
    "series beside each other": (
        ["a", "b", "c"], lambda *x: np.stack(x, 1).reshape(-1, HOURS, 3), "order 3 x 8"
    ),
    "series for a convolution": (
        ["a", "b", "c"], lambda *x: np.stack(x, 2).reshape(-1, 3, HOURS), "order 8 x 3"
    ),
    "lists in lists": (["days"], lambda x: x.reshape(-1, 3, HOURS) * 2 + 1, "order 8 x 3"),
    "a series beside flags": (
        ["a"], lambda x: with_flags(x).reshape(-1, HOURS, 2), "a runs along an axis only"),
    "a relative series beside the hour": (
        ["a"], lambda x: with_hours(x).transpose(0, 2, 1).reshape(-1, 2, HOURS), "read as 8 x 2"),
}  # fmt: skip

HEALTHY = {
    "channels first": (["hwc"], lambda x: x.reshape(-1, SIDE, SIDE, 3).transpose(0, 3, 1, 2)),
    "channels last": (["hwc"], lambda x: x.reshape(-1, SIDE, SIDE, 3)),
    "channels as they lie": (["chw"], lambda x: x.reshape(-1, 3, SIDE, SIDE)),
    "grainy": (
        ["hwc"], lambda x: grainy(x).reshape(-1, SIDE, SIDE, 3).transpose(0, 3, 1, 2)
    ),
    "stripes": (
        ["hwc"], lambda x: (grainy(x) - x + 255 * (np.arange(SIDE * SIDE * 3) % SIDE // 2 % 2))
        .reshape(-1, 3, SIDE, SIDE)
    ),
    "flat": (["hwc"], lambda x: x / 255),
    "grey": (["hwc"], lambda x: x.reshape(-1, 1, SIDE, SIDE, 3).mean(axis=-1)),
    "noise alone": (["hwc"], lambda x: np.random.default_rng(0).permutation(x, axis=1).reshape(
        -1, 3, SIDE, SIDE)),
    "series transposed": (["a", "b", "c"], lambda *x: np.stack(x, 2)),
    "series side by side": (["a", "b", "c"], lambda *x: np.stack(x, 1)),
    "lists in lists": (["days"], lambda x: x),
    "lists transposed": (["days"], lambda x: x.transpose(0, 2, 1)),
    "a series beside flags": (["a"], lambda x: with_flags(x).transpose(0, 2, 1)),
    "a relative series beside the hour": (["a"], with_hours),
    "a series backwards, beside its changes": (
        ["a"], lambda x: np.stack([x[:, ::-1], np.diff(x, prepend=0)], axis=2)),
    "one series in pairs": (["a"], lambda x: x.reshape(-1, HOURS // 2, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_reshaped_axes_fail(name, tmp_path):
    columns, read, measured = MISTAKES[name]
    result = check_encoding(subject_of(tmp_path, columns, read))
    assert result.outcome == "failed", result.measured
    assert measured in result.measured


@pytest.mark.parametrize("name", HEALTHY)
def test_axes_in_their_order_pass(name, tmp_path):
    columns, read = HEALTHY[name]
    result = check_encoding(subject_of(tmp_path, columns, read))
    assert result.outcome == "passed", result.measured


def test_reshaped_tables_for_one_layer_pass(tmp_path):
    read = lambda x: x.reshape(-1, 3, HOURS)  # noqa: E731
    result = check_encoding(subject_of(tmp_path, ["days"], read, width=HOURS))
    assert result.outcome == "passed", result.measured


def test_series_of_flags_beside_others_are_no_tables(tmp_path):
    flags = pl.col("a").list.eval(pl.element() > 0).alias("is_open")
    rows = rows_of_shapes().with_columns(flags)
    result = check_encoding(
        subject_of(tmp_path, ["a", "is_open"], lambda *x: np.stack(x, 2), rows=rows)
    )
    assert result.outcome == "passed", result.measured


def viewed(*shape):
    return lambda: (nn.Flatten(), nn.Unflatten(1, shape), nn.Conv2d(shape[0], 2, 3), nn.Flatten())


def in_order():
    """Channels last, with a layer that puts them first."""

    class Moved(nn.Module):
        def forward(self, x):
            return x.permute(0, 3, 1, 2)

    return Moved(), nn.Conv2d(3, 2, 3), nn.Flatten()


@pytest.mark.parametrize(("layers", "outcome"), [
    (viewed(3, SIDE, SIDE), "failed"), (in_order, "passed"), (viewed(1, 3 * SIDE, SIDE), "passed"),
])  # fmt: skip
def test_axes_reshaped_by_the_model_fail(layers, outcome, tmp_path):
    columns, read = HEALTHY["channels last"]
    result = check_encoding(subject_of(tmp_path, columns, read, layers=layers))
    assert result.outcome == outcome, result.measured


def spectra(x):
    """What each of nine frames holds of six frequencies, [N, 6, 9]."""
    frames = np.lib.stride_tricks.sliding_window_view(x, 8, axis=1)[:, ::5]
    return np.log(np.abs(np.fft.rfft(frames * np.hanning(9)[:8], 10)) + 1e-2).transpose(0, 2, 1)


def delayed(x):
    return np.lib.stride_tricks.sliding_window_view(x, 10, axis=1)


RECORDINGS = {
    "bands over frames": (spectra, "passed"),
    "frames over bands": (lambda x: spectra(x).transpose(0, 2, 1), "passed"),
    "one channel of a picture": (lambda x: spectra(x)[:, None], "passed"),
    "parts of the recording": (lambda x: x[:, :45].reshape(-1, 9, 5), "passed"),
    "delays": (delayed, "passed"),
    "normalised by recording": (lambda x: (s := spectra(x)) - s.mean((1, 2), keepdims=True), "passed"),
    "frames by reshape": (lambda x: spectra(x).reshape(-1, 9, 6), "failed"),
    "frames by reshape, then turned": (
        lambda x: spectra(x).reshape(-1, 9, 6).transpose(0, 2, 1), "failed"
    ),
    "bands by reshape, as a picture": (
        lambda x: spectra(x).transpose(0, 2, 1).reshape(-1, 1, 6, 9), "failed"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDINGS)
def test_recordings_torn_by_a_reshape_fail(name, tmp_path):
    read, outcome = RECORDINGS[name]
    random = np.random.default_rng(8)
    rows = pl.DataFrame(
        {
            "row": range(200),
            "sound": random.normal(0, 1, (200, 48)).cumsum(axis=1).round(3).tolist(),
            "label": random.integers(0, 2, 200),
        }
    )
    result = check_encoding(subject_of(tmp_path, ["sound"], read, rows=rows))
    assert result.outcome == outcome, result.measured
    assert ("scattered" in result.measured) == (outcome == "failed")
