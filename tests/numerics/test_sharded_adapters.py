"""An adapter that is divided over processes, with its base, scores and is exported as a whole one.

Two real processes share the base over gloo, and compare it with one process that holds all of it.
"""

import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.scoring_memory import prepare_wide
from loading_ranks import note_memory
from perennial.contracts.adapter import Adapter
from perennial.contracts.data import Split
from perennial.contracts.errors import DamagedModelError
from perennial.contracts.initial_model import FOLDER
from perennial.contracts.monitoring import WindowDrift
from perennial.contracts.training import Challenger, ScoredCandidate
from perennial.data.dataset import Dataset
from perennial.detect_drift.performance import sharded_losses, window_losses
from perennial.engine.evaluation.processes import Shards
from perennial.engine.export import WEIGHTS_FILE, load_model, read_tensors
from perennial.gate.scoring import score_exported
from perennial.select_checkpoint.candidates import export, select_challenger
from perennial.select_checkpoint.config import SelectionSection
from perennial.select_checkpoint.rescoring import Rescoring
from sharded_models import left_training, made_model
from small_models import stream, write_snapshot
from stored_weights import store_weights
from tiny_training import run_ranks_at

KEEP = {Split.TEST: ("time", "label")}
ADAPTER = Adapter(targets=("blocks.*.linear",), rank=2, whole=("output.*",))
WIDTH = 71  # two processes get unequal parts; enough inputs to be quantized


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def dataset(folder):
    made = write_snapshot(folder / "data", stream(days=40))
    made.write(folder / "snapshot")
    return Dataset(made)


@pytest.fixture(scope="module")
def base(folder, dataset):
    model = made_model(dataset.snapshot, seed=7, width=WIDTH)[1]
    return store_weights(folder / "store", model.state_dict())


@pytest.fixture(scope="module")
def selected(folder, dataset, base):
    """What selection exports of an adapter, from one process and from two shards."""
    found = {}

    def select(**changes):
        adapter = ADAPTER.model_copy(update=changes)
        key = str(changes)
        if key not in found:
            place = folder / f"{len(found)}"
            training = left_training(place, dataset.snapshot, base, adapter, width=WIDTH)
            for shards in (1, 2):
                select_challenger(
                    SelectionSection(processes=None if shards > 1 else 1), folder / "snapshot",
                    training, place / f"{shards}", page=place / f"{shards}.html",
                    shards=Shards(shards),
                )  # fmt: skip
            found[key] = place / "1", place / "2"
        return found[key]

    return select


def full(changes):
    return pytest.param(changes, marks=pytest.mark.full)


BITS = [{"base_bits": bits} for bits in (32, 8, 4)]


@pytest.mark.parametrize("changes", [BITS[0], full(BITS[1]), full(BITS[2])], ids=str)
def test_selection_exports_the_same_bytes_from_shards(selected, base, changes):
    whole, shards = selected(**changes)
    one, other = Challenger.read(whole), Challenger.read(shards)
    for mine, theirs in zip(one.candidates, other.candidates, strict=True):
        assert theirs.metrics == pytest.approx(mine.metrics, rel=1e-6)
    assert other.chosen_step == one.chosen_step
    assert other.weights_sha256 == one.weights_sha256
    assert (shards / WEIGHTS_FILE).read_bytes() == (whole / WEIGHTS_FILE).read_bytes()


@pytest.mark.parametrize("changes", [full(BITS[0]), BITS[2]], ids=str)
def test_merged_shards_are_the_bytes_of_the_merged_model(selected, changes):
    whole, shards = selected(**changes, merge=True)
    assert (shards / WEIGHTS_FILE).read_bytes() == (whole / WEIGHTS_FILE).read_bytes()
    names = load_model(shards)[1].state_dict().keys()
    assert not [name for name in names if "lora" in name or "codes" in name]


@pytest.mark.parametrize("changes", [BITS[0], full(BITS[2])], ids=str)
def test_the_gate_finds_the_same_predictions_and_losses(selected, dataset, changes):
    exported, _ = selected(**changes)
    (_, whole), (_, shards) = (
        score_exported(exported, dataset, KEEP, 1, Shards(n)) for n in (1, 2)
    )
    one, other = whole[Split.TEST], shards[Split.TEST]
    for name in ("predictions", "losses"):
        np.testing.assert_allclose(getattr(other, name), getattr(one, name), rtol=2e-6)
    assert np.ptp(one.predictions) > 0.1, "they are not all alike"


def test_monitoring_finds_the_same_losses(selected, dataset):
    exported, _ = selected(**BITS[0])
    days = dataset.scan(Split.TEST).select("time").collect()["time"].dt.truncate("1d").unique()
    windows = [WindowDrift(start=day, rows=30) for day in days.sort()]
    expected = window_losses(*load_model(exported), dataset.scan(), dataset.snapshot, windows)
    found = sharded_losses(exported, dataset.snapshot, windows, Shards(2))
    assert [each.loss for each in found] == pytest.approx([e.loss for e in expected], rel=2e-6)


@pytest.mark.parametrize("part", ["base", "adapter"])
def test_damaged_weights_are_refused_and_intact_ones_are_not(
    selected, dataset, base, tmp_path, part
):
    exported, _ = selected(**BITS[0])
    (digest,) = base.origin.files.values()
    store, model = tmp_path / "store", tmp_path / "model"
    shutil.copytree(Path(base.store_uri), store)
    shutil.copytree(exported, model)
    record = Challenger.read(model)
    copied = base.model_copy(update={"store_uri": str(store)})
    record.model_copy(update={"initial": copied}).write(model)
    files = {"base": store / FOLDER / f"{digest}.safetensors", "adapter": model / WEIGHTS_FILE}
    content = bytearray(files[part].read_bytes())
    content[-1] ^= 1
    files[part].write_bytes(content)
    with pytest.raises(DamagedModelError, match=r"is not the file that was pinned|are not those"):
        score_exported(model, dataset, KEEP, shards=Shards(2))
    content[-1] ^= 1
    files[part].write_bytes(content)
    score_exported(model, dataset, KEEP, shards=Shards(2))


@pytest.mark.parametrize("made", [{"members": (1, 2)}, {"averaged": True}], ids=str)
def test_means_and_moving_averages_are_those_of_whole_adapters(
    folder, dataset, base, tmp_path, made
):
    training = left_training(tmp_path, dataset.snapshot, base, ADAPTER, width=WIDTH)
    stored = []
    for shards in (1, 2):
        rescoring = Rescoring(
            training, folder / "snapshot", tmp_path / f"scratch-{shards}", shards=Shards(shards)
        )
        last = rescoring.result.checkpoints[-1]
        chosen = ScoredCandidate(
            step=last.step, uri=last.uri, metrics={}, standard_error=0.0, kept_as=last.kept_as,
            **made,
        )  # fmt: skip
        export(chosen, rescoring, tmp_path / f"{shards}")
        stored.append(read_tensors(tmp_path / f"{shards}" / WEIGHTS_FILE))
    one, other = stored
    assert one.keys() == other.keys()
    assert any("lora_A" in name for name in one)
    for name, value in one.items():
        # Running statistics are computed again, by sums in another order.
        torch.testing.assert_close(other[name], value, rtol=1e-6, atol=1e-6)


def test_no_process_holds_the_whole_base(tmp_path):
    """Each of two holds half and one weight; one process alone shows that the measure sees all."""
    size = prepare_wide(tmp_path, 640, 500, adapts=True)
    most = []
    for processes in (1, 2):
        assert (
            run_ranks_at("", processes, partial(note_memory, tmp_path / "wide")) == [0] * processes
        )
        found = (tmp_path / "wide" / f"peak-{rank}" for rank in range(processes))
        most.append(max(int(file.read_text()) / size for file in found))
    assert most[0] > 0.95
    assert most[1] < 0.7
