import shutil

import pytest

from checkpoint_files import FILES, flip_a_bit, manifest, put, upload
from perennial.engine.checkpoints.checkpoint_store import CheckpointStore
from perennial.engine.checkpoints.folder import (
    MARKER,
    DamagedCheckpointError,
    checkpoint_path,
    commit,
    committed,
    delete,
    discard_uncommitted,
    partial_path,
    quarantine,
    read_manifest,
    seal,
    verify,
)

ALL_FILES = [*FILES, "checkpoint.json", MARKER]


@pytest.fixture
def write(tmp_path):
    def made(step):
        put(CheckpointStore(tmp_path), step)
        return checkpoint_path(tmp_path, step)

    return made


def steps(folder):
    return [int(path.name[5:]) for path in committed(folder)]


def test_a_committed_checkpoint_verifies_and_lists_all_its_files(tmp_path, write):
    path = write(10)
    assert verify(path).files.keys() == FILES.keys()
    assert committed(tmp_path) == [path]


@pytest.mark.parametrize("name", ALL_FILES)
def test_a_flipped_bit_anywhere_is_found(write, name):
    path = write(10)
    healthy = (path / name).read_bytes()
    for position in {0, 1, len(healthy) // 3, len(healthy) // 2, len(healthy) - 1}:
        flip_a_bit(path / name, position)
        with pytest.raises(DamagedCheckpointError):
            verify(path)
        (path / name).write_bytes(healthy)
        verify(path)


@pytest.mark.parametrize("name", ALL_FILES)
@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "longer"])
def test_any_other_damage_is_found(write, name, damage):
    path = write(10)
    target = path / name
    content = target.read_bytes()
    damaged = {"empty": b"", "cut": content[:-1], "longer": content + b"\0"}
    target.unlink() if damage == "gone" else target.write_bytes(damaged[damage])
    with pytest.raises(DamagedCheckpointError):
        verify(path)


def test_a_listing_forged_together_with_its_tensors_is_found(write):
    path = write(10)
    flip_a_bit(path / "__0_0.distcp")
    listing = path / "checkpoint.json"
    forged = manifest(10).model_copy(update={"files": {}})
    listing.write_text(forged.to_json())
    with pytest.raises(DamagedCheckpointError):
        read_manifest(path)


def test_a_digest_known_from_writing_is_not_computed_again(tmp_path):
    store = CheckpointStore(tmp_path)
    upload(store, 10)
    known = manifest(10).model_copy(update={"files": {"__0_0.distcp": "digest while writing"}})
    sealed = seal(tmp_path, known)
    assert sealed.files["__0_0.distcp"] == "digest while writing"
    assert sealed.files.keys() == FILES.keys()


def test_checkpoints_are_ordered_by_step_however_many_digits_it_has(tmp_path, write):
    for step in (100_000_000, 99_999_999, 10):
        write(step)
    assert steps(tmp_path) == [10, 99_999_999, 100_000_000]


def test_a_second_pass_over_a_step_replaces_the_first(tmp_path, write):
    write(10)
    partial = partial_path(tmp_path, 10)
    partial.mkdir()
    (partial / "__0_0.distcp").write_bytes(b"second")
    assert verify(commit(tmp_path, manifest(10))).files.keys() == {"__0_0.distcp"}


def test_what_was_never_committed_does_not_count_and_is_deleted(tmp_path, write):
    write(10)
    partial_path(tmp_path, 20).mkdir()
    checkpoint_path(tmp_path, 30).mkdir()
    assert steps(tmp_path) == [10]
    discard_uncommitted(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000010"]


def test_a_sealed_checkpoint_without_its_final_name_does_not_count(tmp_path):
    upload(CheckpointStore(tmp_path), 10)
    seal(tmp_path, manifest(10))
    assert committed(tmp_path) == []
    discard_uncommitted(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_deletion_that_was_cut_short_leaves_no_half_checkpoint(tmp_path, write, monkeypatch):
    kept, half = write(20), write(10)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda path: None)
        delete(half)
    assert half.is_dir()
    assert committed(tmp_path) == [kept]
    discard_uncommitted(tmp_path)
    assert not half.exists()
    write(10)


def test_a_damaged_checkpoint_is_quarantined(tmp_path, write):
    for _ in range(2):  # the same step may be damaged again
        aside = quarantine(write(10))
        assert (aside / "__0_0.distcp").is_file()
        assert committed(tmp_path) == []
    discard_uncommitted(tmp_path)
    assert aside.is_dir()
