import logging

import pytest

from components.contracts.errors import PerennialError
from components.engine.checkpoints.folder import (
    MARKER,
    CheckpointManifest,
    DamagedCheckpointError,
    Progress,
    checkpoint_path,
    choose_kept,
    commit,
    committed,
    discard_uncommitted,
    newest_intact,
    partial_path,
    prune,
    verify,
)


def write(folder, step, fingerprint="f", loss=1.0):
    partial = partial_path(folder, step)
    partial.mkdir(parents=True)
    (partial / "shard").write_bytes(b"x" * step)
    return commit(
        folder,
        CheckpointManifest(
            fingerprint=fingerprint,
            step=step,
            metrics={"loss": loss},
            files={},
            progress=Progress(step=step),
        ),
    )


@pytest.mark.parametrize(
    ("losses", "direction", "expected"),
    [
        ({}, "minimize", {}),
        ({1: 3.0}, "minimize", {1: ("best", "last")}),
        ({1: 3.0, 2: 1.0, 3: 2.0, 4: 9.0}, "minimize", {2: ("best",), 3: ("best",), 4: ("last",)}),
        ({1: 3.0, 2: 1.0, 3: 2.0, 4: 9.0}, "maximize", {1: ("best",), 4: ("best", "last")}),
        ({1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}, "minimize", {1: ("best",), 2: ("best",), 4: ("last",)}),
    ],
)
def test_the_best_and_the_last_are_kept_and_ties_go_to_the_earlier(losses, direction, expected):
    metrics = ((step, {"loss": loss}) for step, loss in losses.items())
    assert choose_kept(metrics, keep_best=2, metric="loss", direction=direction) == expected


def test_a_checkpoint_without_metrics_is_kept_only_as_the_last():
    metrics = [(1, {"loss": 2.0}), (2, {}), (3, {"loss": 3.0}), (4, {})]
    kept = choose_kept(metrics, keep_best=1, metric="loss", direction="minimize")
    assert kept == {1: ("best",), 4: ("last",)}


def test_a_committed_checkpoint_verifies_and_lists_all_its_files(tmp_path):
    path = write(tmp_path, 10)
    assert verify(path).files.keys() == {"shard"}
    assert committed(tmp_path) == [path]


@pytest.mark.parametrize("name", ["shard", "checkpoint.json", MARKER])
@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_any_damage_is_found(tmp_path, name, damage):
    path = write(tmp_path, 10)
    target = path / name
    if damage == "gone":
        target.unlink()
    else:
        content = bytearray(target.read_bytes())
        content[0] ^= 1
        target.write_bytes(bytes(content))
    with pytest.raises(DamagedCheckpointError):
        verify(path)


def test_falls_back_over_several_damaged_checkpoints(tmp_path, caplog):
    for step in (10, 20, 30):
        write(tmp_path, step)
    for step in (20, 30):
        (checkpoint_path(tmp_path, step) / "shard").write_bytes(b"?")
    with caplog.at_level(logging.WARNING):
        path, manifest = newest_intact(tmp_path, "f")
    assert (path, manifest.step) == (checkpoint_path(tmp_path, 10), 10)
    assert caplog.text.count("damaged") >= 2
    assert write(tmp_path, 20).is_dir()
    (checkpoint_path(tmp_path, 20) / "shard").write_bytes(b"?")
    assert newest_intact(tmp_path, "f")[1].step == 10


def test_there_may_be_nothing_to_resume_from(tmp_path):
    assert newest_intact(tmp_path / "none", "f") is None


def test_another_trainings_checkpoint_is_an_error(tmp_path):
    write(tmp_path, 10, fingerprint="other")
    with pytest.raises(PerennialError, match="another training"):
        newest_intact(tmp_path, "f")


def test_what_was_never_committed_does_not_count_and_is_deleted(tmp_path):
    write(tmp_path, 10)
    partial_path(tmp_path, 20).mkdir()
    checkpoint_path(tmp_path, 30).mkdir()
    assert newest_intact(tmp_path, "f")[1].step == 10
    discard_uncommitted(tmp_path)
    assert not partial_path(tmp_path, 20).exists()


def test_pruning_keeps_what_it_is_told(tmp_path):
    for step in (10, 20, 30):
        write(tmp_path, step)
    prune(tmp_path, [10, 30])
    assert [int(path.name[5:]) for path in committed(tmp_path)] == [10, 30]
    assert not checkpoint_path(tmp_path, 20).exists()


def test_what_a_deletion_that_was_cut_short_has_left_is_cleared_away(tmp_path):
    kept = write(tmp_path, 20)
    half_deleted = write(tmp_path, 10)
    (half_deleted / MARKER).unlink()
    discard_uncommitted(tmp_path)
    assert committed(tmp_path) == [kept]
    assert not half_deleted.exists()
    write(tmp_path, 10)
