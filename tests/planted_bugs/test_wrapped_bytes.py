"""Bytes in lists and files that are read as another type, or from which too much is subtracted."""

from typing import ClassVar

import numpy as np
import polars as pl
import pytest
import torch

from other_styles import Classes, dataset_of
from skeleton_tables import prepared
from workshop import results_of

ROWS, WIDTH = 600, 24
GENERATOR = np.random.default_rng(8)
# Around the middle of their range, as quantised features; dark, as the sky; around 0, with a sign.
FEATURES = np.clip(GENERATOR.normal(128, 30, (ROWS, WIDTH)), 0, 255).astype(np.uint8)
SKY = np.clip(GENERATOR.gamma(4, 8, (ROWS, WIDTH)), 0, 255).astype(np.uint8)
SIGNED = np.clip(GENERATOR.normal(0, 30, (ROWS, WIDTH)), -128, 127).astype(np.int8)
SHADES = GENERATOR.integers(0, 256, (ROWS, WIDTH), dtype=np.uint8)


class Bytes(Classes):
    """Numbers of a column, as a network reads them."""

    bytes_: ClassVar = FEATURES
    is_file = True

    @classmethod
    def table(cls):
        numbers = cls.bytes_
        heights = numbers.astype(float).sum(axis=1)
        raw = [row.tobytes() for row in numbers] if cls.is_file else numbers.tolist()
        label = (heights > np.median(heights)).astype(int)
        return pl.DataFrame({"row": range(ROWS), "raw": raw, "label": label})

    def fit(self, train):
        self.fitted = {"mean": [0.0] * WIDTH, **self.fit_label(train.collect()["label"])}

    def encode(self, rows):
        numbers = rows["raw"].to_list()
        if self.is_file:
            numbers = [np.frombuffer(each, dtype=self.bytes_.dtype) for each in numbers]
        read = self.read(np.array(numbers, dtype=self.bytes_.dtype))
        batch = {"x": torch.from_numpy(np.asarray(read, dtype=np.float32))}
        if "label" in rows.columns:
            batch["label"] = self.encode_label(rows["label"])
        return batch

    def read(self, numbers):
        return numbers.astype(np.float32) / 255


class Stretched(Bytes):
    """A list of grey values, stretched so that faint light shows."""

    bytes_, is_file = SKY, False

    def read(self, numbers):
        return np.arcsinh(numbers.astype(np.float32) / 20)


class WithASign(Bytes):
    bytes_ = SIGNED


class Turned(Bytes):
    """Bright is dark, as in a negative."""

    bytes_, is_file = SKY, False

    def read(self, numbers):
        return np.log1p(255.0 - numbers)


class Missing(Stretched):
    """The highest number stands for none, which becomes zero."""

    def read(self, numbers):
        return np.where(numbers == numbers.max(), 0.0, np.sqrt(numbers))


class FromTheMiddle(Bytes):
    """A phase of a turn of 256 steps, of which any is as frequent, begins at the middle."""

    bytes_ = SHADES

    def read(self, numbers):
        return (numbers.astype(np.float32) + 128) % 256 / 256


class FromSixOnwards(Stretched):
    """Hours of a day that begins at six."""

    bytes_ = np.clip(GENERATOR.normal(8, 5, (ROWS, WIDTH)), 0, 23).astype(np.uint8)

    def read(self, numbers):
        return (numbers.astype(np.float32) - 6) % 24 / 24


class ReadAsSigned(Bytes):
    def read(self, numbers):
        return numbers.view(np.int8).astype(np.float32) / 128


class ReadWithoutSign(WithASign):
    def read(self, numbers):
        return numbers.view(np.uint8).astype(np.float32) / 255


class DarkerThanTheSky(Stretched):
    def read(self, numbers):
        return np.arcsinh((numbers - np.uint8(20)).astype(np.float32) / 20)


class NegativeOfTheSky(Turned):
    def read(self, numbers):
        return np.log1p(255.0 - (numbers - np.uint8(16)))


def examined(task_type, folder):
    subject = prepared(task_type, dataset_of(task_type.table(), folder))
    return results_of(subject, "lost_values")["lost_values"]


@pytest.mark.parametrize(
    "task_type", [Bytes, Stretched, WithASign, Turned, Missing, FromTheMiddle, FromSixOnwards]
)
def test_bytes_in_any_order_of_their_own_pass(task_type, tmp_path):
    found = examined(task_type, tmp_path)
    assert found.outcome in ("passed", "skipped"), (found.measured, found.hint)


@pytest.mark.parametrize(
    "task_type", [ReadAsSigned, ReadWithoutSign, DarkerThanTheSky, NegativeOfTheSky]
)
def test_bytes_that_wrap_around_fail(task_type, tmp_path):
    found = examined(task_type, tmp_path)
    assert found.outcome == "failed", found.measured
    assert "become larger than all others" in found.measured or "wrap around" in found.measured
