"""Local driver: its steps are forked from one process, and are processes of their own."""

import json
import subprocess
import sys

import pytest

from perennial.local import steps_after
from perennial.runs import FLOW

PROGRAM = """
import contextlib, json, sys
from kfp import dsl, local
from perennial.local import steps_forked_from_a_warm_process

@dsl.component(base_image="python", install_kfp_package=False)
def look() -> dict:
    import os, sys
    name = open("/proc/self/comm").read().strip()
    before = os.environ.pop("MARK", "unset")
    found = {"process": os.getpid(), "parent": os.getppid(), "name": name, "mark": before,
             "module": sys.modules["__main__"].__spec__.name, "known": "MARK" in sys.modules}
    os.environ["MARK"] = "changed by a step"
    sys.modules["MARK"] = sys
    return found

@dsl.component(base_image="python", install_kfp_package=False)
def fail(how: str) -> str:
    import os, signal, sys
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        sys.exit(3)
    raise ValueError("the third shelf is empty")

with steps_forked_from_a_warm_process(("look",)):
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=sys.argv[1])
    if sys.argv[2] == "look":
        print("FOUND", json.dumps([look().output, look().output]))
    else:
        fail(how=sys.argv[2])
"""


def run(tmp_path, what: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    return subprocess.run(
        [sys.executable, str(program), str(tmp_path / "outputs"), what],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_steps_are_forks_of_one_process_and_do_not_see_each_other(tmp_path):
    done = run(tmp_path, "look")
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("FOUND"))
    first, second = json.loads(line.removeprefix("FOUND"))
    assert first["parent"] == second["parent"]
    assert first["process"] != second["process"]
    assert first["name"] == "look"
    assert first["module"] == "kfp.dsl.executor_main"
    assert (second["mark"], second["known"]) == ("unset", False)


@pytest.mark.parametrize("how", ["killed", "exit", "raised"])
def test_step_that_ends_badly_fails_the_pipeline_with_its_output(tmp_path, how):
    done = run(tmp_path, how)
    assert done.returncode != 0
    assert "FAILURE" in done.stderr
    assert ("the third shelf is empty" in done.stdout + done.stderr) == (how == "raised")


def test_only_steps_that_certainly_follow_are_imported_ahead():
    training, monitoring = FLOW["continuous_training"], FLOW["drift_monitoring"]
    assert steps_after("validate_data", training) == training[2:]
    assert steps_after("validate_data", monitoring) == ("detect_drift", "decide_retraining")
    assert steps_after("decide_retraining", monitoring) == ()
    assert steps_after("check_skeleton", monitoring) == training[3:]
    assert steps_after("clean_up", training) == ()
