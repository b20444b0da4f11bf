"""Averaged weights of a network with batch statistics, and how much memory figures take."""

import tracemalloc
from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file

from perennial.contracts.data import DataSection, Split, SplitSection
from perennial.contracts.errors import BadDataError
from perennial.contracts.training import ScoredCandidate
from perennial.data.dataset import Dataset
from perennial.engine.evaluation.resampling import block_columns, blocks_of
from perennial.engine.evaluation.running_statistics import (
    normalizations,
    sampled_rows,
    training_batches,
)
from perennial.engine.evaluation.scoring import (
    ARRAYS,
    ScoredBatch,
    concatenated,
    read_together,
    score_split,
    write_scores,
)
from perennial.engine.export import WEIGHTS_FILE
from perennial.engine.task import load_task
from perennial.select_checkpoint.candidates import export, score_checkpoints, score_means
from perennial.select_checkpoint.config import SelectionSection
from perennial.select_checkpoint.rescoring import Rescoring
from perennial.snapshot_data.manifest import take_snapshot

TASK = "perennial.tasks.image_classification:ImageClassification"
OPTIONS = {"shape": [8, 8], "resnet": {"depths": [1], "widths": [4]}}
ROWS = 400


@pytest.fixture
def pictures(tmp_path):
    """Rows of 8 x 8 pixels whose brighter half is the label, as a snapshot on disk."""
    random = np.random.default_rng(0)
    label = random.integers(0, 2, ROWS)
    pixels = random.integers(0, 128, (ROWS, 8, 8))
    pixels[label == 1, :4] += 100
    frame = pl.DataFrame(
        {
            "id": range(ROWS),
            "image": pl.Series(pixels.reshape(ROWS, 64).tolist(), dtype=pl.List(pl.UInt8)),
            "label": label,
        }
    )
    (tmp_path / "data").mkdir()
    frame.write_parquet(tmp_path / "data" / "part.parquet")
    data = DataSection(uri=str(tmp_path / "data"), label="label", ids=("id",))
    snapshot = take_snapshot(data, SplitSection())
    snapshot.write(tmp_path / "snapshot")
    return snapshot


@pytest.fixture
def rescoring(pictures, leave_training, tmp_path):
    """Two checkpoints of different weights; statistics as a training leaves them."""
    task = load_task(TASK, OPTIONS, pictures.task_columns)
    task.fit(Dataset(pictures).scan(Split.TRAIN))
    states = {}
    for step in (1, 2):
        torch.manual_seed(step)
        model, other = task.build_model(), task.build_model()
        with torch.no_grad():
            for batch in training_batches(
                task, sampled_rows(Dataset(pictures)), torch.device("cpu")
            ):
                for _ in range(20):
                    model.train()(batch["image"])
        states[step] = (model.state_dict(), dict(other.named_parameters()))
    folder = leave_training(TASK, task, states)
    (tmp_path / "scratch").mkdir()
    return Rescoring(folder, tmp_path / "snapshot", tmp_path / "scratch", processes=1)


@pytest.mark.parametrize(("steps", "averaged"), [((1, 2), False), ((1,), True)])
def test_averaged_weights_have_the_statistics_of_what_reaches_them(rescoring, steps, averaged):
    task, model = rescoring.untrained(steps, averaged=averaged)
    (batch,) = training_batches(task, sampled_rows(rescoring.dataset), torch.device("cpu"))
    reached = []
    first = normalizations(model)[0]
    first.register_forward_hook(lambda module, inputs, output: reached.append(inputs[0]))
    with torch.no_grad():
        model(batch["image"])
    mean, variance = reached[0].mean((0, 2, 3)), reached[0].var((0, 2, 3))
    torch.testing.assert_close(first.running_mean, mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(first.running_var, variance, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["plain", "averaged", "mean"])
def test_the_exported_weights_score_what_the_candidate_did(rescoring, pictures, tmp_path, kind):
    task = load_task(TASK, OPTIONS, pictures.task_columns)
    task.load_state(rescoring.result.task_state)
    kept = score_checkpoints(rescoring)
    section = SelectionSection(average_last=2)
    means = score_means(
        task, rescoring, kept, section=section, metric="log_loss", direction="minimize"
    )
    wanted = {"plain": kept[0], "averaged": kept[1], "mean": means[0]}[kind]
    chosen = ScoredCandidate(
        step=wanted.record.step, uri=wanted.record.uri, metrics={}, standard_error=0.0,
        kept_as=("best",), averaged=wanted.averaged, members=wanted.members,
    )  # fmt: skip
    export(chosen, rescoring, tmp_path / "challenger")
    model = task.build_model()
    model.load_state_dict(load_file(tmp_path / "challenger" / WEIGHTS_FILE))
    again = score_split(task, model.eval(), Dataset(pictures), Split.VALIDATION)
    assert again.metrics(task) == wanted.scored.metrics(task)


def held_by_numpy(work):
    """What it gives, and how many bytes of arrays were in memory at once at most, and are left."""
    tracemalloc.start()
    given = work()
    peak = tracemalloc.get_traced_memory()[1]
    arrays = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)
    traces = tracemalloc.take_snapshot().filter_traces([arrays]).traces
    tracemalloc.stop()
    return given, peak, sum(trace.size for trace in traces)


def test_the_figures_of_candidates_are_held_on_disk(rescoring, pictures, tmp_path):
    """Whatever a row held, what remains of it are a few numbers, and those not in memory."""
    next(rescoring.scores([(1,)]))  # what is imported and cached meanwhile
    held, _, left = held_by_numpy(lambda: list(rescoring.scores([(1,)] * 4)))
    (_, scored), *_ = held[-1]
    assert len(held) == 4
    assert left < scored.losses.nbytes
    files = tmp_path.glob("scratch/figures-*/*/*")
    assert sum(file.stat().st_size for file in files) == 5 * 2 * sum(
        getattr(scored, name).nbytes for name in ARRAYS
    )
    (_, task, model), *_ = rescoring._models((1,))
    whole = score_split(task, model, Dataset(pictures), Split.VALIDATION)
    (_, again), *_ = next(rescoring.scores([(1,)]))
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(again, name), getattr(whole, name))


def batches(number, rows=1000, classes=5):
    random = np.random.default_rng(0)
    for _ in range(number):
        ones = np.ones(rows)
        yield ScoredBatch(random.random(rows), random.random((rows, classes)), ones, ones)


def test_writing_figures_takes_the_memory_of_one_batch_however_many_there_are(tmp_path):
    list(batches(1))

    def written(number):
        return write_scores(batches(number), tmp_path / str(number))

    few, many = held_by_numpy(lambda: written(3)), held_by_numpy(lambda: written(300))
    assert many[0].rows == 300_000
    assert many[1] < 1.5 * few[1] < 1_000_000, "19 MB were written"


def test_the_figures_of_processes_are_joined_in_their_order(tmp_path):
    made = list(batches(5, rows=7))
    parts = [
        write_scores(made[part], tmp_path / f"{rank}")
        for rank, part in enumerate((slice(0, 2), slice(2, 2), slice(2, 5)))
    ]
    assert [part.rows for part in parts] == [14, 0, 21]
    read, whole = read_together(parts), concatenated(made)
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(read, name), getattr(whole, name))
    empty = [part.model_copy(update={"rows": 0}) for part in parts]
    with pytest.raises(BadDataError, match="no rows"):
        read_together(empty)


@pytest.mark.parametrize("columns", [{"time": "time"}, {"group": "group"}, {}], ids=str)
def test_blocks_are_those_of_the_rows_that_are_scored(leave_training, tmp_path, columns):
    """In the order of the files, which are not in that of time."""
    random = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for part in range(3):
        frame = pl.DataFrame({
            "id": range(part * 500, part * 500 + 500),
            "time": [datetime(2025, 1, 1) + timedelta(hours=float(h)) for h in
                     random.uniform(0, 1400, 500)],
            "group": random.integers(0, 40, 500).astype(str),
            "x": random.normal(size=500), "label": random.integers(0, 2, 500),
        })  # fmt: skip
        frame.write_parquet(tmp_path / "data" / f"part-{part}.parquet")
    data = DataSection(
        uri=str(tmp_path / "data"), label="label", ids=("id",), features=("x",), **columns
    )
    snapshot = take_snapshot(data, SplitSection())
    snapshot.write(tmp_path / "snapshot")
    task = load_task("perennial.tasks.tabular:TabularClassification", {}, snapshot.task_columns)
    task.fit(Dataset(snapshot).scan(Split.TRAIN))
    model = task.build_model()
    folder = leave_training("perennial.tasks.tabular:TabularClassification", task,
                            {1: (model.state_dict(), None)})  # fmt: skip
    found = Rescoring(folder, tmp_path / "snapshot", tmp_path, processes=1).blocks()
    scored = score_split(task, model, Dataset(snapshot), Split.VALIDATION, keep=block_columns(data))
    expected = blocks_of(scored.rows, data, snapshot.split)
    assert (found.count, found.unit) == (expected.count, expected.unit)
    np.testing.assert_array_equal(found.index, expected.index)
