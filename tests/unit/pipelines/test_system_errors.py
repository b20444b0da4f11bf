"""What the operating system refuses, and what a task raises, is one message without a traceback."""

import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from perennial.cli import main
from perennial.contracts.user_code import place_in, place_of, shorten_trace, without_marks
from perennial.verb_errors import explain_error

FULL = (
    "import resource, sys; from perennial.cli import main; "
    "resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY)); "
    "sys.exit(main(sys.argv[1:]))"
)


def require_clear(code, printed, *parts):
    """Exit code 2; problem, evidence and action; no traceback."""
    assert (code, printed) == (2, printed)
    assert printed.startswith("perennial: "), printed
    assert "  evidence: " in printed
    assert "  to do:    " in printed
    assert "Traceback" not in printed
    for part in parts:
        assert part in printed, printed


@pytest.mark.parametrize("verb", ["run", "monitor", "sanity"])
@pytest.mark.parametrize("home", ["a file", "a folder that nobody can write to"])
def test_a_home_that_cannot_be_written_is_named_with_another_way(project, capsys, verb, home):
    place = project / "contract.toml" if home == "a file" else Path("/sys/perennial")
    code = main([verb, str(project / "contract.toml"), "--home", str(place)])
    require_clear(code, capsys.readouterr().err, str(place), "--home FOLDER")


@pytest.mark.parametrize("verb", ["run", "compile"])
def test_a_full_disk_is_named_with_the_space_that_is_left(project, verb):
    """A limit on the size of files stands for a disk without space."""
    arguments = {
        "run": [str(project / "contract.toml"), "--home", str(project / "home")],
        "compile": ["--out", str(project / "out")],
    }
    done = subprocess.run(
        [sys.executable, "-c", FULL, verb, *arguments[verb]],
        capture_output=True, text=True, check=False, cwd=project,
    )  # fmt: skip
    require_clear(done.returncode, done.stderr, "MB are free there", "free space on its disk")


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        sqlite3.OperationalError("database or disk is full"),
    ],
)
def test_a_full_disk_without_a_path_names_the_home(error, tmp_path):
    found = explain_error(error, tmp_path)
    assert str(tmp_path) in found.problem
    assert "No space left" in found.problem


TASK = """from perennial.tasks.tabular import TabularClassification

class Mine(TabularClassification):
    def fit(self, train):
        {}
"""


@pytest.mark.parametrize("verb", ["probe", "sanity"])
def test_what_a_task_raises_is_told_with_its_place(project, capsys, verb):
    module = f"raising_{verb}"
    (project / f"{module}.py").write_text(TASK.format("raise KeyError('price')"))
    contract = project / "contract.toml"
    stock = "perennial.tasks.tabular:TabularClassification"
    contract.write_text(contract.read_text().replace(stock, f"{module}:Mine"))
    if verb == "probe":
        code = main(["probe", str(contract), "--only", "batch-size"])
    else:
        code = main(["sanity", str(contract), "--home", str(project / "home")])
    printed = capsys.readouterr().err
    require_clear(code, printed, "KeyError: 'price'", f"{module}.py:5 in fit")
    if verb == "sanity":
        log = Path(printed.split("  log:      ")[1].strip())
        assert "Traceback" in log.read_text()
        assert "^^^" not in log.read_text()


def test_a_defect_of_our_own_is_stored_and_not_printed(monkeypatch, capsys):
    monkeypatch.setattr("perennial.contract_help.options.overview", partial(int, "no number"))
    assert main(["options"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("perennial: an unexpected error: ValueError: invalid literal")
    log = Path(printed.split("  log:      ")[1].splitlines()[0])
    assert "Traceback" in log.read_text()
    log.unlink()


def test_the_users_own_frame_is_found_among_those_of_libraries(tmp_path, monkeypatch):
    (tmp_path / "cancer.py").write_text(
        "import json\n\n\ndef fit(text):\n    return json.loads(text)['a']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import cancer

    with pytest.raises(ValueError, match="Expecting property name") as caught:
        cancer.fit("{")
    sys.modules.pop("cancer")
    # The test's own frame comes first, the one of `json` last.
    assert place_of(caught.value) == "cancer.py:5 in fit"


TRACE = """Traceback (most recent call last):
  File "/home/me/task/cancer.py", line 29, in fit
    return self.net(x).squeeze()[0] + undefined
           ~~~~~~~~~~~^^^^^^^^^^^
  File "/usr/lib/site-packages/torch/nn/module.py", line 1, in forward
    raise IndexError(
IndexError: invalid index of a 0-dim tensor
"""


def test_a_traceback_becomes_its_message_and_the_users_place():
    assert place_in(TRACE) == "cancer.py:29 in fit"
    assert shorten_trace(TRACE, 3) == (
        "IndexError: invalid index of a 0-dim tensor (raised at cancer.py:29 in fit)"
    )
    assert "^" not in without_marks(TRACE)
    assert len(without_marks(TRACE).splitlines()) == len(TRACE.splitlines()) - 1


ENDLESS = {
    "thread": "import threading\nthreading.Thread(target=threading.Event().wait).start()\n",
    "handler of atexit": "import atexit, time\natexit.register(time.sleep, 10_000)\n",
}


def check_in_a_process(project, at_import):
    """`perennial check` as people run it, with a task whose module does something at its end."""
    (project / "mine.py").write_text(TASK.format("super().fit(train)") + at_import)
    contract = project / "contract.toml"
    stock = "perennial.tasks.tabular:TabularClassification"
    contract.write_text(contract.read_text().replace(stock, "mine:Mine"))
    return subprocess.run(
        [sys.executable, "-m", "perennial.cli", "check", "contract.toml"],
        capture_output=True, text=True, check=False, cwd=project, timeout=120,
    )  # fmt: skip


@pytest.mark.hostile
@pytest.mark.parametrize("left", ENDLESS)
def test_what_a_task_leaves_running_does_not_keep_the_command_from_its_end(project, left):
    done = check_in_a_process(project, ENDLESS[left])
    assert done.returncode == 0, done.stderr
    assert "is valid" in done.stdout
    assert "the work is done, but" in done.stderr
    assert ("Thread-" if left == "thread" else "handlers of atexit") in done.stderr


def test_a_task_that_leaves_nothing_running_ends_without_a_word(project):
    done = check_in_a_process(project, "")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.hostile
def test_a_files_control_characters_do_not_reach_the_terminal(project, capsys):
    path = project / "contract.toml"
    path.write_bytes(path.read_bytes() + b"x = 1 # \x1b]0;title\x07 \xe2\x80\xae\n")
    assert main(["check", str(path)]) == 2
    printed = capsys.readouterr().err
    assert "\\x1b]0;title\\x07" in printed
    assert not {"\x1b", "\x07", "\u202e"} & set(printed)


SHELL = f"{sys.executable} -m perennial.cli"


@pytest.mark.hostile
def test_a_current_folder_that_was_removed_is_named(tmp_path):
    command = f"mkdir gone && cd gone && rmdir ../gone && {SHELL} models"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    require_clear(done.returncode, done.stderr, "the current folder does not exist")


@pytest.mark.hostile
@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_closed_stream_changes_no_exit_code(tmp_path, closed):
    done = subprocess.run(
        ["sh", "-c", f"{SHELL} models --home {tmp_path} {closed}"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
