"""One rank alone: what is saved is what was there, in the format of PyTorch's own checkpoints."""

import logging
import os
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from perennial.contracts.data import ModelSection
from perennial.contracts.errors import PerennialError
from perennial.engine.checkpoints.checkpoint_store import CheckpointStore
from perennial.engine.checkpoints.checkpointer import Checkpointer
from perennial.engine.checkpoints.folder import Progress, committed, verify
from perennial.engine.checkpoints.writing import CheckpointNotWrittenError, CheckpointWriter
from perennial.engine.config.training import TrainingSection
from perennial.engine.job import TrainingJob
from perennial.engine.world.distributed import World

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(scope="module", autouse=True)
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def open_checkpointer(tmp_path):
    def opened(**settings) -> Checkpointer:
        job = TrainingJob(
            fingerprint="f", snapshot="", model=ModelSection(name="n", task="m:T"),
            training=TrainingSection(checkpoints=settings, evaluate_every_steps=10),
            num_processes=1, folder=str(tmp_path), contract={"training": {"seed": 1}},
        )  # fmt: skip
        world = World(0, 0, 1, torch.device("cpu"))
        return Checkpointer(job, ("loss", "minimize"), world, job.training)

    return opened


@pytest.fixture
def trained():
    """A model of several types and shapes after an update, and its optimizer."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1).double())
    model.register_buffer("empty", torch.zeros(0, 3))
    model.register_buffer("transposed", torch.randn(7, 3).bfloat16().t())
    model.register_buffer("flags", torch.tensor([True, False, True]))
    model.register_buffer("count", torch.tensor(5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model[2](model[1](model[0](torch.randn(8, 3))).double()).square().sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.fixture
def held(monkeypatch):
    """Holds the writer back until it is released."""
    release = threading.Event()
    write = CheckpointWriter.write_data

    def later(self, plan, planner):
        assert release.wait(20)
        return write(self, plan, planner)

    monkeypatch.setattr(CheckpointWriter, "write_data", later)
    yield release
    release.set()


def parameters(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def change(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-3.0)


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_saved_state_is_restored_bit_for_bit(open_checkpointer, trained, asynchronous):
    model, optimizer = trained
    checkpointer = open_checkpointer(asynchronous=asynchronous)
    checkpointer.save(model, optimizer, Progress(step=7, seconds=2.5), {"loss": 1.0})
    before = parameters(model)
    moments = {k: v.clone() for k, v in optimizer.state[model[0].weight].items()}
    checkpointer.wait()
    change(model)
    optimizer.state[model[0].weight]["exp_avg"].zero_()
    progress = open_checkpointer().restore(model, optimizer)
    assert (progress.step, progress.seconds, progress.num_resumes) == (7, 2.5, 1)
    assert same(before, parameters(model))
    assert same(moments, optimizer.state[model[0].weight])


def test_training_goes_on_while_a_checkpoint_is_written(open_checkpointer, trained, held):
    model, optimizer = trained
    before = parameters(model)
    checkpointer = open_checkpointer()
    checkpointer.save(model, optimizer, Progress(step=1), {"loss": 1.0})
    assert checkpointer.is_writing
    change(model)
    held.set()
    checkpointer.wait()
    assert not checkpointer.is_writing
    checkpointer.restore(model, optimizer)
    assert same(before, parameters(model))


def test_without_a_copy_the_change_would_be_written(open_checkpointer, trained, held, monkeypatch):
    model, optimizer = trained
    before = parameters(model)
    monkeypatch.setattr(DefaultStager, "stage", lambda self, state: state)
    checkpointer = open_checkpointer()
    checkpointer.save(model, optimizer, Progress(step=1), {"loss": 1.0})
    change(model)
    held.set()
    checkpointer.restore(model, optimizer)
    assert not same(before, parameters(model))


def test_the_next_save_waits_for_the_one_before(open_checkpointer, trained, held):
    model, optimizer = trained
    checkpointer = open_checkpointer()
    checkpointer.save(model, optimizer, Progress(step=1), {"loss": 1.0})
    threading.Timer(0.2, held.set).start()
    checkpointer.save(model, optimizer, Progress(step=2), {"loss": 2.0})
    assert committed(checkpointer._store.folder), "the first is there before the second is taken"
    checkpointer.wait()


@pytest.mark.parametrize("asynchronous", [True, False])
def test_the_format_is_that_of_pytorchs_own_checkpoints(
    open_checkpointer, trained, tmp_path, asynchronous
):
    model, optimizer = trained
    checkpointer = open_checkpointer(asynchronous=asynchronous)
    checkpointer.save(model, optimizer, Progress(step=1), {})
    checkpointer.wait()
    (path,) = committed(tmp_path / "checkpoints")
    ours, theirs = (
        {"model": {name: torch.zeros_like(v) for name, v in model.state_dict().items()}}
        for _ in range(2)
    )
    load(ours, checkpoint_id=path, no_dist=True)
    assert same(model.state_dict(), ours["model"])
    save({"model": model.state_dict()}, checkpoint_id=tmp_path / "theirs", no_dist=True)
    load(theirs, checkpoint_id=tmp_path / "theirs", no_dist=True)
    assert same(theirs["model"], ours["model"])


def test_a_state_that_grows_is_saved_whole(open_checkpointer, trained, tmp_path):
    model, _ = trained
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.0)
    checkpointer = open_checkpointer()
    checkpointer.save(model, optimizer, Progress(step=1), {"loss": 1.0})
    model.register_buffer("late", torch.arange(4.0))
    checkpointer.save(model, optimizer, Progress(step=2), {"loss": 1.0})
    checkpointer.wait()
    found = {"model": {"late": torch.zeros(4)}}
    load(found, checkpoint_id=committed(tmp_path / "checkpoints")[-1], no_dist=True)
    assert found["model"]["late"].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_an_error_of_the_writer_is_raised_by_the_next_save(
    open_checkpointer, trained, monkeypatch, tmp_path
):
    model, optimizer = trained
    checkpointer = open_checkpointer()
    checkpointer.save(model, optimizer, Progress(step=1), {"loss": 1.0})
    checkpointer.wait()
    monkeypatch.setattr(os, "fsync", failing)
    checkpointer.save(model, optimizer, Progress(step=2), {"loss": 0.5})
    with pytest.raises(CheckpointNotWrittenError, match="rank 0: OSError: the disk is full") as e:
        checkpointer.save(model, optimizer, Progress(step=3), {"loss": 0.5})
    assert "of step 2" in str(e.value)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]
    assert [record.step for record in checkpointer.records()] == [1]


def failing(descriptor):
    raise OSError("the disk is full")


def test_only_committed_checkpoints_decide_which_are_kept(open_checkpointer, trained):
    model, optimizer = trained
    checkpointer = open_checkpointer(keep_best=1, keep_every_steps=20)
    checkpointer.restore(model, optimizer)
    for step, loss in ((10, 1.0), (20, 3.0), (30, 2.0), (40, 4.0), (50, 5.0)):
        checkpointer.save(model, optimizer, Progress(step=step), {"loss": loss})
    kept = {record.step: record.kept_as for record in checkpointer.records()}
    assert kept == {10: ("best",), 20: ("interval",), 40: ("interval",), 50: ("last",)}
    again = open_checkpointer(keep_best=1)
    again.restore(model, optimizer)
    again.save(model, optimizer, Progress(step=60), {"loss": 0.5})
    assert [record.step for record in again.records()] == [60]


def test_the_new_one_is_on_disk_before_an_old_one_is_deleted(
    open_checkpointer, trained, monkeypatch
):
    model, optimizer = trained
    checkpointer = open_checkpointer(keep_best=1)
    seen = []
    delete = CheckpointStore.delete

    def watched(self, step):
        seen.append((step, self.steps()))
        delete(self, step)

    monkeypatch.setattr(CheckpointStore, "delete", watched)
    for step, loss in ((1, 3.0), (2, 2.0), (3, 1.0)):
        checkpointer.save(model, optimizer, Progress(step=step), {"loss": loss})
    checkpointer.wait()
    assert seen == [(1, [1, 2, 3])]


def test_a_checkpoint_that_cannot_be_deleted_is_a_warning(
    open_checkpointer, trained, monkeypatch, caplog
):
    model, optimizer = trained

    def refuse(self, step):
        raise PermissionError("not yours")

    monkeypatch.setattr(CheckpointStore, "delete", refuse)
    checkpointer = open_checkpointer(keep_best=1)
    with caplog.at_level(logging.WARNING):
        for step in (1, 2, 3):
            checkpointer.save(model, optimizer, Progress(step=step), {"loss": -float(step)})
        assert [record.step for record in checkpointer.records()] == [3]
    assert caplog.text.count("cannot be deleted: not yours") == 1


def test_the_one_before_the_last_is_a_way_back_until_the_end(open_checkpointer, trained):
    model, optimizer = trained
    checkpointer = open_checkpointer(keep_best=1)
    for step, loss in ((10, 1.0), (20, 2.0), (30, 3.0), (40, 9.0)):
        checkpointer.save(model, optimizer, Progress(step=step), {"loss": loss})
    checkpointer.wait()
    assert checkpointer._store.steps() == [10, 30, 40]
    checkpointer.discard_from(35)  # the jump began there
    assert checkpointer.restore(model, optimizer).step == 30
    checkpointer.save(model, optimizer, Progress(step=40), {"loss": 4.0})
    checkpointer.close()
    kept = [record.step for record in checkpointer.records()]
    assert checkpointer._store.steps() == kept == [10, 40]


def test_checkpoints_because_of_signals_leave_the_evaluated_ones_as_a_way_back(
    open_checkpointer, trained
):
    model, optimizer = trained
    for step, metrics in (
        (10, {"loss": 1.0}),
        (20, {"loss": 2.0}),
        (30, {"loss": 3.0}),
        (33, {}),
        (36, {}),
    ):
        checkpointer = open_checkpointer(keep_best=1)
        checkpointer.restore(model, optimizer)
        checkpointer.save(model, optimizer, Progress(step=step), metrics)
        checkpointer.wait()
    assert checkpointer._store.steps() == [10, 20, 30, 36]
    checkpointer.discard_from(31)  # the jump began there
    assert checkpointer.restore(model, optimizer).step == 30


def test_taking_a_checkpoint_before_the_first_update_changes_nothing(open_checkpointer, trained):
    model, used = trained
    fresh = torch.optim.AdamW(model.parameters(), lr=0.01)
    checkpointer = open_checkpointer()
    checkpointer.save(model, fresh, Progress(step=1), {})
    assert not fresh.state
    before = parameters(model)
    change(model)
    checkpointer.restore(model, used)
    assert same(before, parameters(model))
    assert not used.state, "moments of updates that were made after it"


def test_corrupt_checkpoints_are_forgotten(open_checkpointer, trained):
    model, optimizer = trained
    checkpointer = open_checkpointer()
    for step in (1, 2, 3):
        checkpointer.save(model, optimizer, Progress(step=step), {"loss": 1.0})
    checkpointer.discard_from(2)
    assert [record.step for record in checkpointer.records()] == [1]
    assert checkpointer.restore(model, optimizer).step == 1


def test_a_corrupt_checkpoint_that_could_not_be_deleted_is_no_way_back(
    open_checkpointer, trained, monkeypatch
):
    model, optimizer = trained

    def refuse(self, step):
        raise PermissionError("not yours")

    checkpointer = open_checkpointer(keep_best=1)
    with monkeypatch.context() as refusing:
        refusing.setattr(CheckpointStore, "delete", refuse)
        for step, loss in ((10, 1.0), (20, 2.0), (30, 3.0), (40, 9.0)):
            checkpointer.save(model, optimizer, Progress(step=step), {"loss": loss})
        checkpointer.wait()
    assert checkpointer._store.steps() == [10, 20, 30, 40]
    checkpointer.discard_from(15)
    assert checkpointer.restore(model, optimizer).step == 10


def test_a_checkpoint_names_its_settings_and_world(open_checkpointer, trained, tmp_path):
    model, optimizer = trained
    checkpointer = open_checkpointer()
    checkpointer.save(model, optimizer, Progress(step=1), {"loss": 1.0})
    checkpointer.wait()
    manifest = verify(committed(tmp_path / "checkpoints")[0])
    assert manifest.contract == {"training": {"seed": 1}}
    assert [part.processes for part in manifest.progress.parts] == [1]


def test_the_settings_that_differ_are_named(open_checkpointer, trained):
    model, optimizer = trained
    checkpointer = open_checkpointer()
    checkpointer.save(model, optimizer, Progress(step=1), {"loss": 1.0})
    checkpointer.wait()
    other = open_checkpointer()
    changes = {"fingerprint": "g", "contract": {"training": {"seed": 2}}}
    other._job = other._job.model_copy(update=changes)
    with pytest.raises(PerennialError, match=r"training\.seed: 1 in the checkpoint, 2 now"):
        other.restore(model, optimizer)
