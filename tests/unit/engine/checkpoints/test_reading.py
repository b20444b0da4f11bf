"""A checkpoint from the bucket runs nothing, whoever wrote it; honest ones load as they were."""

import os
import pickle
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata

from perennial.check_skeleton.trials.plan import RankRecord, read_record, write_record
from perennial.engine.checkpoints.checkpoint_store import fetch_checkpoint
from perennial.engine.checkpoints.folder import (
    CheckpointManifest,
    DamagedCheckpointError,
    Progress,
    commit,
    partial_path,
)
from perennial.engine.checkpoints.reading import (
    METADATA_FILE,
    CheckpointReader,
    export_weights,
    leave_out_absent,
    load_state,
)

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
STATE = {
    "model": {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)},
    "optimizer": {"step": 3, "rate": 0.5, "name": "sgd", "is_fused": True, "rest": None},
}


class Malicious:
    """Makes a file when it is unpickled, as an attacker's would run a program."""

    def __init__(self, target):
        self.target = str(target)

    def __reduce__(self):
        return os.mkdir, (self.target,)


def committed(folder, state, *, damage=None):
    """A checkpoint whose digests fit all its bytes, as a writer of the bucket can make it."""
    partial = partial_path(folder, 1)
    dcp.save(state, checkpoint_id=partial, no_dist=True)
    if damage is not None:
        damage(partial / METADATA_FILE)
    manifest = CheckpointManifest(
        fingerprint="f", step=1, metrics={}, files={}, progress=Progress(step=1)
    )
    return commit(folder, manifest)


def pickled(value):
    return lambda file: file.write_bytes(pickle.dumps(value))


def inside(target):
    """The honest metadata with the attack in a field of it."""

    def damage(file):
        metadata = pickle.loads(file.read_bytes())
        metadata.planner_data = Malicious(target)
        file.write_bytes(pickle.dumps(metadata))

    return damage


def empty_state():
    return {
        "model": {name: torch.zeros_like(value) for name, value in STATE["model"].items()},
        "optimizer": {"step": 0, "rate": 0.0, "name": "", "is_fused": False, "rest": 1},
    }


def test_an_honest_checkpoint_loads_as_it_was(tmp_path):
    loaded = empty_state()
    load_state(loaded, committed(tmp_path, STATE), no_dist=True)
    assert loaded["optimizer"] == STATE["optimizer"]
    assert all(torch.equal(loaded["model"][name], STATE["model"][name]) for name in STATE["model"])


@pytest.mark.parametrize("how", ["alone", "inside"])
def test_code_in_the_metadata_is_not_run_although_every_digest_fits(tmp_path, how):
    target = tmp_path / "ran"
    damage = pickled(Malicious(target)) if how == "alone" else inside(target)
    checkpoint = committed(tmp_path / "checkpoints", STATE, damage=damage)
    assert fetch_checkpoint(str(checkpoint)) == checkpoint, "the digests do not help here"
    for use in (
        lambda: CheckpointReader(checkpoint).read_metadata(),
        lambda: load_state(empty_state(), checkpoint, no_dist=True),
        lambda: export_weights(checkpoint, tmp_path / "out"),
    ):
        with pytest.raises(DamagedCheckpointError, match="was not loaded") as caught:
            use()
        assert "posix.mkdir" in caught.value.evidence
        assert "who can write to the store" in caught.value.action
    assert not target.exists()
    with warnings.catch_warnings():  # the planted attack is one
        warnings.simplefilter("ignore")
        dcp.load(empty_state(), checkpoint_id=checkpoint, no_dist=True) if how == "inside" else (
            pickle.loads((checkpoint / METADATA_FILE).read_bytes())
        )
    assert target.exists()


def test_code_in_a_value_that_is_no_tensor_is_not_run(tmp_path):
    target = tmp_path / "ran"
    state = {**STATE, "optimizer": {**STATE["optimizer"], "name": Malicious(target)}}
    checkpoint = committed(tmp_path / "checkpoints", state)
    with pytest.raises(DamagedCheckpointError, match=r"optimizer\.name of the checkpoint"):
        load_state(empty_state(), checkpoint, no_dist=True)
    assert not target.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04.",
        b"garbage",
        pickle.dumps({"a": 1}),
        pickle.dumps(Metadata),
        b"\x80\x04N." * 9,
    ],
)
def test_metadata_that_is_something_else_is_refused_with_its_name(tmp_path, content):
    checkpoint = committed(tmp_path, STATE, damage=lambda file: file.write_bytes(content))
    with pytest.raises(DamagedCheckpointError, match=r"\.metadata of the checkpoint"):
        CheckpointReader(checkpoint).read_metadata()


@pytest.mark.parametrize(
    "name", ["os.system", "builtins.eval", "torch.load", "torch.hub.load", "builtins.getattr"]
)
def test_functions_of_any_library_are_refused(tmp_path, name):
    module, _, function = name.rpartition(".")
    content = f"c{module}\n{function}\n(S'x'\ntR.".encode()
    checkpoint = committed(tmp_path, STATE, damage=lambda file: file.write_bytes(content))
    with pytest.raises(DamagedCheckpointError) as caught:
        CheckpointReader(checkpoint).read_metadata()
    assert caught.value.evidence == f"it references {name}"


def test_a_trials_record_is_read_without_running_anything(tmp_path):
    target, file = tmp_path / "ran", tmp_path / "record"
    write_record(file, RankRecord(start={"w": torch.ones(2)}, parameters=frozenset({"w"})))
    assert read_record(file).parameters == {"w"}
    torch.save({"start": Malicious(target)}, file)
    with pytest.raises(pickle.UnpicklingError):
        read_record(file)
    assert not target.exists()


def test_what_a_checkpoint_lacks_is_an_error_and_no_exit(tmp_path):
    folder = committed(tmp_path, STATE)
    # The library raises a BaseException of its own, which looks as if the process were to end.
    with pytest.raises(RuntimeError, match=r"Missing key in checkpoint.*model\.other"):
        load_state({"model": {"other": torch.ones(2)}}, folder, no_dist=True)


def test_moments_that_a_checkpoint_lacks_are_not_asked_for(tmp_path):
    moments = {"a.weight": {"exp_avg": torch.ones(2)}, "idle": {"exp_avg": torch.ones(2)}}
    held = {"optimizer": {"state": {"a.weight": moments["a.weight"]}}}
    folder = committed(tmp_path, held)
    state = {"optimizer": {"state": dict(moments)}}
    leave_out_absent(state, folder)
    assert list(state["optimizer"]["state"]) == ["a.weight"]
