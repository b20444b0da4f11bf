"""A file is hashed once; a record of it counts only while nobody can have written to the file."""

import os
import time

import pytest

from perennial.clients import file_tree
from perennial.data.verified_files import is_verified, record_verified


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "data" / "part.parquet"
    path.parent.mkdir()
    path.write_bytes(b"content")
    return path


@pytest.fixture
def settled(monkeypatch):
    monkeypatch.setattr(file_tree, "SETTLED_NS", -1)


def test_a_record_counts_for_this_content_of_this_file(file, tmp_path, settled):
    cache = tmp_path / "cache"
    assert not is_verified(file, "aa", cache)
    record_verified(file, "aa", cache)
    assert is_verified(file, "aa", cache)
    assert not is_verified(file, "bb", cache)
    assert not is_verified(file.with_name("other"), "aa", cache)


@pytest.mark.parametrize("keeps_times", [False, True])
def test_any_write_ends_it_even_if_times_are_set_back(file, tmp_path, settled, keeps_times):
    cache = tmp_path / "cache"
    record_verified(file, "aa", cache)
    before = file.stat()
    time.sleep(0.02)
    file.write_bytes(b"CONTENT")
    if keeps_times:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not is_verified(file, "aa", cache)


def test_a_file_that_was_just_written_is_not_recorded(file, tmp_path):
    record_verified(file, "aa", tmp_path / "cache")
    assert not is_verified(file, "aa", tmp_path / "cache")
    own = tmp_path / "cache" / "copy"  # nobody else writes there
    own.write_bytes(b"content")
    record_verified(own, "aa", tmp_path / "cache")
    assert is_verified(own, "aa", tmp_path / "cache")


def test_records_of_a_folder_that_others_may_write_to_do_not_count(file, tmp_path, settled):
    cache = tmp_path / "cache"
    record_verified(file, "aa", cache)
    (cache / "verified").chmod(0o777)
    assert not is_verified(file, "aa", cache)
    (cache / "verified").chmod(0o700)
    assert is_verified(file, "aa", cache)
    (cache / "verified").rename(cache / "moved")
    (cache / "verified").symlink_to(cache / "moved")
    assert not is_verified(file, "aa", cache)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to give a folder to another user")
def test_records_of_another_user_do_not_count(file, tmp_path, settled):
    cache = tmp_path / "cache"
    record_verified(file, "aa", cache)
    os.chown(cache / "verified", 12345, 12345)
    assert not is_verified(file, "aa", cache)
