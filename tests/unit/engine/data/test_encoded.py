from pathlib import Path

import numpy as np
import pytest
import torch

from perennial.contracts.data import Split
from perennial.contracts.errors import BadDataError, BadTaskError
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.engine.data import encoded
from perennial.engine.data.encoded import DIGEST, EncodedSplit, encode_split
from perennial.engine.task import LABEL, WEIGHT
from tiny_training import TinyTask


@pytest.fixture
def dataset(root):
    return Dataset(Snapshot.read(root / "snapshot"))


@pytest.fixture
def task(dataset):
    task = TinyTask(TinyTask.Options(), dataset.snapshot.task_columns)
    task.fit(dataset.scan(Split.TRAIN))
    return task


@pytest.mark.parametrize("chunk", [7, 64, 10_000])
def test_the_encoded_split_equals_encoding_at_once(dataset, task, tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(encoded, "ENCODE_ROWS", chunk)
    encode_split(task, dataset, Split.TRAIN, tmp_path / "train", "digest")
    split = EncodedSplit(tmp_path / "train")
    expected = task.encode(dataset.scan(Split.TRAIN).collect())
    assert split.rows == dataset.snapshot.split_rows[Split.TRAIN]
    rows = np.array([3, 0, 3, split.rows - 1])
    for name, tensor in split.gather(rows).items():
        torch.testing.assert_close(tensor, expected[name][torch.from_numpy(rows)], rtol=0, atol=0)


def test_an_encoded_split_is_not_encoded_again(dataset, task, tmp_path):
    encode_split(task, dataset, Split.TRAIN, tmp_path / "train", "digest")
    task.encode = lambda rows: pytest.fail("encoded twice")
    encode_split(task, dataset, Split.TRAIN, tmp_path / "train", "digest")


@pytest.mark.parametrize("is_marked", [True, False])
def test_what_another_training_encoded_is_not_used(dataset, task, tmp_path, is_marked):
    encode_split(task, dataset, Split.TRAIN, tmp_path / "train", "digest")
    before = EncodedSplit(tmp_path / "train").gather(np.arange(3))
    if not is_marked:
        (tmp_path / "train" / DIGEST).unlink()
    task.mean += 1.0
    encode_split(task, dataset, Split.TRAIN, tmp_path / "train", "other" if is_marked else "digest")
    after = EncodedSplit(tmp_path / "train").gather(np.arange(3))
    torch.testing.assert_close(after[LABEL], before[LABEL] - 1.0)


def without_label(batch, rows):
    del batch[LABEL]


def one_row_less(batch, rows):
    batch["x"] = batch["x"][1:]


def width_by_first_row(batch, rows):
    batch["x"] = batch["x"][:, : 1 + int(rows["id"][0]) % 2]


def type_by_first_row(batch, rows):
    batch["x"] = batch["x"].double() if rows["id"][0] % 2 else batch["x"]


def weights_in_later_chunks(batch, rows):
    if rows["id"][0]:
        batch[WEIGHT] = torch.ones(rows.height)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(encoded, "ENCODE_ROWS", 5)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_label, "one example per row"),
        (one_row_less, "one example per row"),
        (width_by_first_row, "changes the shape or type of 'x'"),
        (type_by_first_row, "changes the shape or type of 'x'"),
        (weights_in_later_chunks, "changes the shape or type of 'weight'"),
    ],
)
def test_a_broken_encoder_is_named(dataset, task, tmp_path, change, message):
    encode = task.encode

    def broken(rows):
        batch = encode(rows)
        change(batch, rows)
        return batch

    task.encode = broken
    with pytest.raises(BadTaskError, match=message):
        encode_split(task, dataset, Split.TRAIN, tmp_path / "train", "digest")
    assert not (tmp_path / "train").exists()


@pytest.mark.parametrize("counted", [0, 10, 10_000])
def test_other_rows_than_the_snapshot_counted_are_an_error(dataset, task, tmp_path, counted):
    rows = dict(dataset.snapshot.split_rows) | {Split.TRAIN: counted}
    dataset.snapshot = dataset.snapshot.model_copy(update={"split_rows": rows})
    with pytest.raises(BadDataError, match=r"is empty|does not have the rows"):
        encode_split(task, dataset, Split.TRAIN, tmp_path / "train", "digest")
    assert not Path(tmp_path / "train").exists()
