"""What a working tree has besides its commit is kept, and gives the same files again elsewhere."""

import subprocess
from pathlib import Path
from random import Random

import pytest

from perennial.clients.version_control import (
    DIFF_BYTES,
    commit_of,
    place_in_repository,
    uncommitted_diff,
)


@pytest.fixture
def git(tmp_path, monkeypatch):
    """Runs git in a repository of one commit, `tmp_path / "repository"`."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "repository"
    (folder / "model").mkdir(parents=True)

    def run(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(folder), *who, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    run("init", "--quiet")
    (folder / "model" / "task.py").write_bytes(b"RATE = 1\r\nNAME = '\xe9'\r\n")
    (folder / "weights.bin").write_bytes(bytes(range(256)))
    run("add", ".")
    run("commit", "--quiet", "--message", "task")
    return run


@pytest.fixture
def repository(git, tmp_path):
    return tmp_path / "repository"


def files_of(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    named = {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}
    return {name: content for name, content in named.items() if not name.startswith(".git/")}


def make_dirty(repository: Path) -> None:
    """Every kind of change: another line, a renamed and a deleted file, new ones, one of bytes."""
    (repository / "model" / "task.py").write_bytes(b"RATE = 2\r\nNAME = '\xe9'\r\n")
    (repository / "model" / "new layers.py").write_text("WIDTH = 3\n")
    (repository / "model" / "__init__.py").write_text("")
    (repository / "top.py").write_text("no newline at the end")
    (repository / "weights.bin").write_bytes(bytes(reversed(range(256))))


def restore(repository: Path, patch: bytes, target: Path) -> None:
    """What a person does who wants the sources as they were."""
    command = ["git", "clone", "--quiet", str(repository), str(target)]
    subprocess.run(command, check=True, capture_output=True)
    command = ["git", "-C", str(target), "apply", "--whitespace=nowarn", "-"]
    subprocess.run(command, input=patch, check=True, capture_output=True)


def test_a_folder_without_version_control_has_neither_commit_nor_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit_of(tmp_path) == place_in_repository(tmp_path) == ""
    assert uncommitted_diff(tmp_path) == b""


def test_a_clean_tree_has_a_commit_and_no_changes(git, repository):
    assert commit_of(repository / "model") == git("rev-parse", "HEAD")
    assert place_in_repository(repository) == "."
    assert place_in_repository(repository / "model") == "model"
    assert uncommitted_diff(repository) == b""


@pytest.mark.parametrize("settings", [(), ("diff.noprefix", "true"), ("color.ui", "always")])
@pytest.mark.parametrize("asked_in", [".", "model"])
def test_a_dirty_tree_is_had_again_byte_for_byte(git, repository, tmp_path, asked_in, settings):
    if settings:
        git("config", *settings)
    make_dirty(repository)
    (repository / "data.parquet").write_bytes(b"rows")
    patch = uncommitted_diff(repository / asked_in)
    assert b"+RATE = 2\r\n" in patch
    commit = commit_of(repository)
    assert commit.endswith("-dirty")
    restore(repository, patch, tmp_path / "again")
    expected = files_of(repository)
    del expected["data.parquet"]  # data was never part of it
    assert files_of(tmp_path / "again") == expected
    assert uncommitted_diff(tmp_path / "again") == patch


def test_large_data_that_was_checked_in_does_not_push_out_the_sources(git, repository, tmp_path):
    make_dirty(repository)
    (repository / "weights.bin").write_bytes(Random(0).randbytes(2 * DIFF_BYTES))
    patch = uncommitted_diff(repository)
    assert b"weights" not in patch
    restore(repository, patch, tmp_path / "again")
    assert (tmp_path / "again" / "model" / "new layers.py").exists()
    (repository / "huge.py").write_text("#" * 2 * DIFF_BYTES)
    assert b"(cut: " in uncommitted_diff(repository)
