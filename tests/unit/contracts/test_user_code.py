"""A task cannot end the process that calls it, and its module cannot be imported without end."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import polars as pl
import pytest
from torch import nn

from perennial.check_skeleton.examination import run_check
from perennial.check_skeleton.made_up_inputs import find_failure_on_real_rows
from perennial.check_skeleton.registry import Check
from perennial.cli import main
from perennial.contracts import environment
from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import BadTaskError, PerennialError
from perennial.contracts.user_code import (
    Interrupted,
    RunStopped,
    import_user_module,
    no_silent_exit,
    user_code,
)
from perennial.engine.task import load_task, load_task_type
from perennial.local import record_silent_ends
from perennial.runs import step_records
from perennial.steps.decorator import StepResult, pipeline_step
from perennial.steps.journal import Journal
from perennial.supervisor import failed_step
from tiny_training import TinyTask

pytestmark = pytest.mark.hostile

ENDINGS = {
    "sys.exit": "import sys; sys.exit(0)",
    "sys.exit without a code": "import sys; sys.exit()",
    "quit": "quit()",
    "raise SystemExit": "raise SystemExit",
    "os._exit": "import os; os._exit(0)",
    "an own BaseException": "raise type('Ended', (BaseException,), {})('over')",
}
ENDLESS = {
    "a loop": "while True:\n    pass",
    "a sleep": "import time\ntime.sleep(1e6)",
    "a call": "def wait():\n    while True:\n        pass\nwait()",
    "a loop that catches Exception": "while True:\n    try:\n        pass\n    except Exception:\n"
    "        pass",
    "a lock": "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
}


@pytest.fixture
def contract(tmp_path, monkeypatch):
    """Writes a contract whose task's module begins with some code."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(code: str, name: str = "ending"):
        (tmp_path / f"{name}.py").write_text(code + "\n")
        file = tmp_path / "contract.toml"
        file.write_text(
            f"[model]\nname = 'm'\ntask = '{name}:Own'\n"
            "[data]\nuri = 'd'\nlabel = 'y'\nids = ['i']\n"
        )
        return file

    yield write
    sys.modules.pop("ending", None)


@pytest.mark.parametrize("verb", ["check", "run", "sanity", "probe"])
def test_a_module_that_ends_the_process_is_an_error_of_each_verb(contract, capsys, verb):
    option = ["--only", "batch-size"] if verb == "probe" else []
    file = contract("import sys\nsys.exit(0)")
    if verb == "sanity":  # takes its snapshot first
        (file.parent / "d").mkdir()
        pl.DataFrame({"i": range(900), "y": [0.0] * 900, "x": [1.0] * 900}).write_parquet(
            file.parent / "d/a.parquet"
        )
    home = [] if verb == "probe" else ["--home", str(file.parent / "home")]
    assert main([verb, *option, str(file), *home]) == 2
    printed = capsys.readouterr().err
    assert "importing 'ending' tried to end the process: SystemExit" in printed
    assert "ending.py:2 in <module>" in printed


@pytest.mark.parametrize("code", ENDINGS.values(), ids=ENDINGS)
def test_each_way_to_end_the_process_at_import_is_an_error(contract, capsys, code):
    file = contract(code)
    assert main(["check", str(file), "--home", str(file.parent / "home")]) == 2
    assert "ending.py:1 in <module>" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["fit", "state", "load_state", "encode", "build_model",
                                    "losses", "predict", "score", "augment", "__init__"])  # fmt: skip
@pytest.mark.parametrize("code", ENDINGS.values(), ids=ENDINGS)
def test_each_way_to_end_the_process_in_a_method_is_an_error(method, code):
    names = {}
    body = textwrap.indent(code, "    ")
    exec(f"def {method}(self, *arguments):\n{body}", names)
    own = type("Own", (TinyTask,), {method: names[method]})
    arguments = (TinyTask.Options(), TaskColumns(label="y", features={"x0": "Float64"}))
    with pytest.raises(BadTaskError), no_silent_exit():
        getattr(own(*arguments), method)()


def test_a_check_whose_model_ends_the_process_fails_and_the_others_are_made():
    class Ending(nn.Module):
        def forward(self):
            sys.exit(0)

    class Subject:
        seed = 1
        settings = type("S", (), {"severities": {}, "waivers": {}})
        task = type("T", (), {"scored_together": 1})

        def __init__(self):
            self._made = {find_failure_on_real_rows: ""}  # real rows raise nothing

    def end(subject, judge):
        return Ending()()

    ends = Check("ends", expects="", source="", perform=end)
    result = run_check(ends, Subject())
    assert result.outcome == "failed"
    assert "tried to end the process" in result.measured


@pytest.mark.parametrize("code", ["sys.exit(0)", "raise SystemExit", "os._exit(0)"])
def test_a_step_whose_code_ends_the_process_has_failed(tmp_path, monkeypatch, code):
    monkeypatch.setenv(environment.STORE_URI, str(tmp_path / "store"))
    monkeypatch.setenv(environment.TRACKING_URI, "sqlite:///unused")
    monkeypatch.setenv(environment.RUN_FOLDER, str(tmp_path))
    monkeypatch.delenv(environment.LEASE, raising=False)

    @pipeline_step("ending", outputs=("report",))
    def ending(*, report: str) -> StepResult:
        exec(f"import os, sys\n{code}")
        return StepResult()

    with pytest.raises(BadTaskError):
        ending(report=str(tmp_path / "report"))
    (record,) = step_records(tmp_path)
    assert record.status == "failed"


def test_a_step_whose_process_ended_without_a_word_is_recorded_as_failed(tmp_path):
    journal = Journal(tmp_path)
    for step in ("snapshot_data", "check_skeleton"):
        journal.append("step_started", step=step, key=f"{step}-1", log="log.txt")
    journal.append("step_finished", step="snapshot_data", key="snapshot_data-1", summary="")
    assert record_silent_ends(tmp_path, 0) == 1
    first, second = step_records(tmp_path)
    assert first.status == "finished"
    assert second.status == "failed"
    assert "ended before it wrote its result" in second.problem
    assert "memory ran out" in second.problem


def test_a_step_that_a_full_disk_ended_names_the_disk(tmp_path, monkeypatch):
    Journal(tmp_path).append("step_started", step="check_skeleton", key="c-1", log="log.txt")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=236_000))
    assert record_silent_ends(tmp_path, 0) == 1
    (record,) = step_records(tmp_path)
    assert f"0.2 MB of disk left in {tmp_path}" in record.problem


def test_a_full_disk_is_named_although_no_failure_could_be_recorded(tmp_path, monkeypatch):
    """The journal lies on the same disk; the message was "the driver failed"."""
    Journal(tmp_path).append("step_started", step="train_model", key="t-1", log="log.txt")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=124_000))
    found = failed_step(tmp_path)
    assert found.startswith("train_model failed")
    assert f"0.1 MB of disk left in {tmp_path}; free space" in found


@pytest.mark.parametrize("code", ENDLESS.values(), ids=ENDLESS)
def test_an_endless_import_is_stopped_and_its_line_is_named(contract, monkeypatch, capsys, code):
    monkeypatch.setenv("PERENNIAL_IMPORT_SECONDS", "1")
    file = contract(code)
    assert main(["check", str(file), "--home", str(file.parent / "home")]) == 2
    printed = capsys.readouterr().err
    assert "importing 'ending' did not end within 1 s" in printed
    assert "ending.py:" in printed
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 1.0  # that of pytest's own limit


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("while True:\n    try:\n        while True: pass\n    except BaseException: pass",
         "importing 'ending' did not end within 0.1 s"),
        ("import itertools\nsum(itertools.repeat(1))", 'ending.py", line 2'),
    ],
    ids=["catches everything", "never returns to the interpreter"],
)  # fmt: skip
def test_an_import_that_cannot_be_interrupted_ends_the_process(contract, code, message):
    file = contract(code)
    program = (
        f"from perennial.contracts.user_code import *\nimport sys\n"
        f"sys.path.insert(0, {str(file.parent)!r})\nimport_user_module('ending')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        env=os.environ | {"PERENNIAL_IMPORT_SECONDS": "0.1",
                          "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert ended.returncode in (1, 2)
    assert message in ended.stderr


def test_what_a_healthy_module_does_is_left_alone(contract, monkeypatch):
    monkeypatch.setenv("PERENNIAL_IMPORT_SECONDS", "30")
    file = contract(
        "import os\n"
        "try:\n    import no_such_package\nexcept ImportError:\n    pass\n"
        "if os.fork() == 0:\n    os._exit(0)\n"
        "os.wait()\nready = True"
    )
    monkeypatch.syspath_prepend(str(file.parent))
    with no_silent_exit():
        assert import_user_module("ending").ready
    assert load_task_type("tiny_training:TinyTask") is TinyTask
    task = load_task(
        "tiny_training:TinyTask", {}, TaskColumns(label="y", features={"x0": "Float64"})
    )
    assert task.score.__doc__ == TinyTask.score.__doc__


@pytest.mark.parametrize("kind", [RunStopped, Interrupted, ValueError])
def test_what_is_meant_to_pass_passes(kind):
    with pytest.raises(kind), user_code("the task"):
        raise kind


def test_ctrl_c_passes_where_python_answers_it(interruptible):
    with pytest.raises(KeyboardInterrupt), user_code("the task"):
        raise KeyboardInterrupt


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf", "0"])
def test_a_limit_that_is_no_number_of_seconds_is_refused(monkeypatch, text):
    monkeypatch.setenv("PERENNIAL_IMPORT_SECONDS", text)
    with pytest.raises(PerennialError, match="not a positive number"):
        import_user_module("not_imported_before")
