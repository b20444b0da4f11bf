"""A model that is divided over processes scores, is chosen and is exported as a whole one is."""

import shutil

import numpy as np
import pytest
import torch
import torch.distributed as dist
import yaml

from perennial.contracts.data import ModelSection, Split
from perennial.contracts.errors import BadDataError, OutageError, ShardingError
from perennial.contracts.initial import EnsembleSection
from perennial.contracts.monitoring import WindowDrift
from perennial.contracts.scoring import ScoringSection
from perennial.contracts.section import cut_sections
from perennial.contracts.training import Challenger
from perennial.contracts.triggers import MonitoringConfig
from perennial.data.dataset import Dataset
from perennial.detect_drift.performance import sharded_losses, window_losses
from perennial.engine import export
from perennial.engine.evaluation.processes import Failure, Machine, Shards, require_shards
from perennial.engine.evaluation.scoring import blames_machine
from perennial.engine.export import load_model, weight_files
from perennial.engine.parallelism.sharded_loading import (
    build_sharded,
    load_sharded_model,
    write_gathered,
)
from perennial.engine.serving.servable import make_servable
from perennial.engine.task import load_task
from perennial.engine.world.distributed import World
from perennial.gate.config import GateSection, JudgementConfig
from perennial.gate.judgement import judge_challenger
from perennial.gate.scoring import score_exported
from perennial.register_model.step import register_model_step
from perennial.registry.model_registry import open_registry
from perennial.select_checkpoint.candidates import select_challenger
from perennial.select_checkpoint.config import SelectCheckpointConfig, SelectionSection
from perennial.select_checkpoint.rescoring import Rescoring
from registration_inputs import NAME, step_arguments, write_inputs
from sharded_models import TASK, left_training, made_model, write_made
from small_models import GOOD, stream, write_challenger, write_skeleton, write_snapshot
from small_models import TASK as SMALL_TASK

ARRAYS = ("losses", "predictions", "labels", "weights")
KEEP = {Split.TEST: ("time", "label"), Split.VALIDATION: ()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sharded")


@pytest.fixture(scope="module")
def dataset(folder):
    made = write_snapshot(folder / "data", stream(days=60))
    made.write(folder / "snapshot")
    return Dataset(made)


@pytest.fixture(scope="module")
def exported(folder, dataset):
    """A model in several files."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(export, "SHARD_BYTES", 200)
        write_made(folder / "model", dataset.snapshot)
    assert len(weight_files(folder / "model")) > 2
    return folder / "model"


@pytest.fixture(scope="module")
def training(folder, dataset):
    return left_training(folder, dataset.snapshot)


@pytest.fixture
def alone():
    """A group of this process alone: its shards are whole, but sharded all the same."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield World(0, 0, 1, torch.device("cpu"))
    dist.destroy_process_group()


def require_close(one, other):
    for name in ARRAYS:
        np.testing.assert_allclose(getattr(other, name), getattr(one, name), rtol=1e-6)
    assert one.rows.equals(other.rows)


def test_two_shards_predict_what_the_whole_model_does(exported, dataset):
    _, whole = score_exported(exported, dataset, KEEP)
    _, shards = score_exported(exported, dataset, KEEP, shards=Shards(2))
    for split in KEEP:
        require_close(whole[split], shards[split])


def test_the_champion_has_the_losses_of_the_whole_model(exported, dataset):
    days = dataset.scan(Split.TEST).select("time").collect()["time"].dt.truncate("1d").unique()
    windows = [WindowDrift(start=day, rows=30) for day in days.sort()]
    rows = dataset.scan()
    expected = window_losses(*load_model(exported), rows, dataset.snapshot, windows)
    found = sharded_losses(exported, dataset.snapshot, windows, Shards(2))
    assert len(found) == len(expected) > 1
    for one, other in zip(expected, found, strict=True):
        assert other == one.model_copy(update={"loss": pytest.approx(one.loss, rel=1e-6)})


def test_the_gate_promotes_a_model_in_shards_and_notes_that_it_was_not_served(
    environment, dataset, folder, tmp_path
):
    write_challenger(tmp_path / "challenger", dataset.snapshot, GOOD)
    write_skeleton(tmp_path / "skeleton", constant=0.5)
    config = JudgementConfig(
        model=ModelSection(name=NAME, task=SMALL_TASK),
        gate=GateSection(resamples=300, min_effective_days=2.0),
        scoring=ScoringSection(shards=2),
    )
    verdict = judge_challenger(
        config, folder / "snapshot", tmp_path / "challenger", tmp_path / "skeleton",
        page=tmp_path / "page.html", environment=environment,
    )  # fmt: skip
    assert verdict.promote, verdict.summary
    assert any("scoring.shards = 2" in note for note in verdict.notes)
    assert verdict.serving.megabytes > 0
    assert verdict.serving.rows == 0


@pytest.fixture(scope="module")
def selected(folder, dataset, training):
    """What selection finds and exports, of whole models and of two shards."""
    found = {}
    for shards in (1, 2):
        place = folder / f"challenger-{shards}"
        select_challenger(
            SelectionSection(processes=None if shards > 1 else 1),
            folder / "snapshot", training, place, page=folder / f"{shards}.html",
            shards=Shards(shards),
        )  # fmt: skip
        found[shards] = place
    return found


def test_selection_measures_and_chooses_the_same(selected):
    whole, shards = (Challenger.read(place) for place in selected.values())
    assert [each.step for each in shards.candidates] == [each.step for each in whole.candidates]
    for one, other in zip(whole.candidates, shards.candidates, strict=True):
        assert other.metrics == pytest.approx(one.metrics, rel=1e-6)
    assert shards.chosen_step == whole.chosen_step


def test_the_export_of_shards_is_that_of_the_whole_model(selected):
    whole, shards = selected.values()
    names = [sorted(file.name for file in each.iterdir()) for each in (whole, shards)]
    assert names[0] == names[1]
    require_same_weights(load_model(whole)[1].state_dict(), load_model(shards)[1].state_dict())
    signatures = [
        yaml.safe_load((each / "MLmodel").read_text())["signature"] for each in (whole, shards)
    ]
    assert signatures[0] == signatures[1]


def require_same_weights(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        found = other[name].full_tensor() if hasattr(other[name], "full_tensor") else other[name]
        torch.testing.assert_close(found, value, rtol=1e-6, atol=1e-7)


def test_means_and_moving_averages_of_shards_are_those_of_whole_models(folder, training, alone):
    whole, shards = (
        Rescoring(training, folder / "snapshot", folder, world=world) for world in (None, alone)
    )
    for steps, averaged in (((1, 2), False), ((2,), True)):
        one, other = (each.untrained(steps, averaged=averaged)[1] for each in (whole, shards))
        require_same_weights(one.state_dict(), other.state_dict())


@pytest.fixture
def gathered(exported, dataset, alone, tmp_path, monkeypatch):
    """The same export, loaded in shards and gathered again."""
    monkeypatch.setattr(export, "SHARD_BYTES", 200)
    _, model = load_sharded_model(exported, alone)
    place = tmp_path / "gathered"
    digest = write_gathered(model, place, alone)
    assert digest == Challenger.read(exported).weights_sha256
    shutil.copy(exported / Challenger.file_name, place)
    make_servable(place, dataset, width=1)
    return place


def test_a_registered_version_holds_every_file_of_a_gathered_export(
    environment, gathered, tmp_path
):
    write_inputs(tmp_path)
    shutil.rmtree(tmp_path / "challenger")
    shutil.copytree(gathered, tmp_path / "challenger")
    register_model_step(**step_arguments(tmp_path))
    registry = open_registry(environment)
    version = registry.version_by_alias(NAME, "champion")
    found = registry.download(version, tmp_path / "downloads")
    contents = [
        {file.name: file.read_bytes() for file in weight_files(each)} for each in (found, gathered)
    ]
    assert contents[0] == contents[1]
    assert len(contents[0]) > 2
    load_model(found)


def test_members_of_an_ensemble_are_sharded_one_by_one(dataset, alone):
    members = [
        {
            "title": title, "weights_sha256": "", "task": TASK, "options": {},
            "columns": dataset.snapshot.task_columns.model_dump(mode="json"),
        }
        for title in ("challenger", "1")
    ]  # fmt: skip
    options = {"members": members}
    task = load_task("perennial.tasks.ensemble:Ensemble", options, dataset.snapshot.task_columns)
    model = build_sharded(task, alone)
    first, second = model.members
    assert task.blocks(model) == [*first.blocks, first, *second.blocks, second]
    assert all(hasattr(each, "unshard") for each in task.blocks(model))


@pytest.mark.parametrize("option", ["reads_weights", "is_tied"])
def test_a_model_that_cannot_be_sharded_is_refused_with_a_way_out(dataset, alone, option):
    task, _ = made_model(dataset.snapshot, **{option: True})
    with pytest.raises(
        ShardingError, match=r"BlocksTask cannot be built in shards(.|\n)*shards = 1"
    ):
        build_sharded(task, alone)


def test_more_shards_than_the_machine_has_room_for_are_refused(monkeypatch):
    monkeypatch.setattr(Machine, "here", lambda: Machine(gpus=0, cores=2, threads=1))
    require_shards(2)
    with pytest.raises(ShardingError, match=r"has 2 cores(.|\n)*set scoring.shards = 2"):
        require_shards(3)
    monkeypatch.setattr(Machine, "here", lambda: Machine(gpus=1, cores=64, threads=1))
    with pytest.raises(ShardingError, match="has 1 GPU"):
        require_shards(2)


def test_ensembles_are_refused(folder, training, tmp_path):
    with pytest.raises(ShardingError, match=r"model\.ensemble"):
        select_challenger(
            SelectionSection(), folder / "snapshot", training, tmp_path / "challenger",
            page=tmp_path / "page.html", ensemble=EnsembleSection(), shards=Shards(2),
        )  # fmt: skip


def test_a_process_that_dies_ends_the_others_and_blames_the_machine(dataset, tmp_path):
    write_made(tmp_path / "model", dataset.snapshot, fails="dies")
    with pytest.raises(ShardingError, match="process 1 of 2 ended with exit code -9") as raised:
        score_exported(tmp_path / "model", dataset, KEEP, shards=Shards(2))
    assert blames_machine(raised.value)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("no such column"), RuntimeError, "ValueError: no such column"),
        (BadDataError("bad rows", action="look"), BadDataError, "bad rows\n  to do:    look"),
        (MemoryError("all gone"), ShardingError, "scoring in shards was stopped: MemoryError"),
        (ShardingError("not so", action="do"), ShardingError, "not so"),
        (OutageError("no answer", action="wait"), OutageError, "no answer"),
    ],
)
def test_an_error_of_a_process_is_raised_as_this_one_would(error, kind, text):
    found = Failure.from_json(Failure.of(error).to_json()).as_error()
    assert type(found) is kind
    assert str(found).startswith(text)
    assert blames_machine(found) == blames_machine(error)


def test_the_identity_of_a_result_does_not_depend_on_shards():
    model = ModelSection(name="clicks", task="a:B")
    for reader in (JudgementConfig, SelectCheckpointConfig, MonitoringConfig):
        one, two = (reader(model=model, scoring=ScoringSection(shards=n)) for n in (1, 2))
        assert one.without_layout() == two.without_layout()
        cut = [cut_sections(each.to_json(), reader, with_layout=False) for each in (one, two)]
        assert cut[0] == cut[1]
        assert cut_sections(two.to_json(), reader) == two.to_json()
