"""A new home's MLflow database is made once and whole, whoever opens it first or is killed."""

import json
import signal
import subprocess
import sys

import pytest

from perennial.clients.tracking import open_tracking
from perennial.contracts.environment import Environment

# One warm process forks the openers, so that they arrive together.
PROGRAM = """
import json, os, signal, sys
from perennial.contracts.environment import Environment
from perennial.clients.tracking import open_mlflow, open_tracking

place, openers, fatal = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
environment = Environment(f"{place}/store", f"sqlite:///{place}/home/mlflow.db", "r")
start, ready = os.pipe()

def enter(frame, event, argument):
    global fatal
    if frame.f_code.co_name == "upgrade" and event == "call":  # of one migration
        fatal -= 1
        if fatal == 0:
            os.kill(os.getpid(), signal.SIGKILL)

children = []
for number in range(openers):
    child = os.fork()
    if child == 0:
        os.close(ready)
        os.read(start, 1)
        sys.setprofile(enter if fatal else None)
        open_mlflow(environment)
        open_tracking(environment, f"model-{number}").log_metrics({"x": 1.0})
        os._exit(0)
    children.append(child)
os.close(ready)
print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))
"""


def first_opens(folder, openers, fatal=0):
    """The exit codes of processes that open a database together; fatal: the migration to die in."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(openers), str(fatal)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout), done.stderr


@pytest.mark.full
def test_processes_that_open_a_new_home_at_once_all_find_it_whole(tmp_path):
    codes, printed = first_opens(tmp_path, 4)
    assert codes == [0] * 4, printed


@pytest.mark.parametrize("migration", [2, pytest.param(20, marks=pytest.mark.full)])
def test_whoever_is_killed_while_the_database_is_made_leaves_none_behind(tmp_path, migration):
    codes, printed = first_opens(tmp_path, 1, fatal=migration)
    assert codes == [-signal.SIGKILL], printed
    assert not (tmp_path / "home" / "mlflow.db").exists()
    # Here, where MLflow is imported.
    open_tracking(
        Environment(f"{tmp_path}/store", f"sqlite:///{tmp_path}/home/mlflow.db", "r"), "m"
    )
    assert (tmp_path / "home" / "mlflow.db").exists()
