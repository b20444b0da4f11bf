"""What was downloaded lies where nobody else can put something in its place."""

import os
import stat
import subprocess
import sys

import pytest

from perennial.contracts import environment
from perennial.contracts.environment import CACHE, data_cache
from perennial.contracts.errors import PerennialError


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.delenv(CACHE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_outside_a_run_it_is_a_folder_of_this_user_alone(home):
    assert data_cache() == home / "perennial"
    assert mode_of(data_cache()) == 0o700


def test_a_folder_that_others_can_write_to_is_closed(home):
    (home / "perennial").mkdir()
    (home / "perennial").chmod(0o777)
    assert mode_of(data_cache()) == 0o700


def test_a_link_is_refused(home):
    (home / "elsewhere").mkdir()
    (home / "perennial").symlink_to(home / "elsewhere")
    with pytest.raises(PerennialError, match="is not a folder of this user") as caught:
        data_cache()
    assert caught.value.evidence == "it is a link or a file"
    assert CACHE in caught.value.action


def test_the_folder_of_another_user_is_refused(home, monkeypatch):
    data_cache()
    monkeypatch.setattr(environment.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PerennialError, match="is not a folder of this user") as caught:
        data_cache()
    assert f"its owner is user {os.getuid()}" in caught.value.evidence


def test_without_a_home_it_is_a_folder_of_the_process_which_is_deleted(home):
    (home / "file").write_text("")
    code = (
        "from perennial.contracts.environment import data_cache as c; print(c()); assert c() == c()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env=os.environ | {"XDG_CACHE_HOME": str(home / "file"), "TMPDIR": str(home)},
    )  # fmt: skip
    assert done.stdout.startswith(f"{home}/perennial-")
    assert list(home.glob("perennial-*")) == []


def test_a_run_reports_its_folder(home, monkeypatch):
    monkeypatch.setenv(CACHE, str(home / "run"))
    assert data_cache() == home / "run"
