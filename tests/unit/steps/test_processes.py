"""Processes of the fork server: started like `python -m`, and ended together."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from perennial.steps.processes import run_module, running_processes, wait_for_processes

MODULE = """
import multiprocessing, os, signal, sys, time

def main():
    how = sys.argv[1]
    print("started", sys.argv[0], os.environ["MARK"], "HOME" in os.environ, flush=True)
    if how == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if how == "leaves a child":
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(300,)).start()
    if how in ("deaf", "waits"):
        open(os.environ["READY"] + how, "w").close()
        time.sleep(300)
    while how == "fails" and not os.path.exists(os.environ["READY"] + os.environ["MARK"]):
        time.sleep(0.05)
    return 3 if how == "fails" else 0
"""
SHARING = """
import os, signal, sys
from perennial.contracts.errors import PerennialError
from perennial.steps.processes import _SERVER, running_processes, share_fork_server
from perennial.steps.processes import start_fork_server, wait_for_processes
import fork_target

if __name__ == "__main__":
    start_fork_server()
    server = _SERVER._forkserver_pid
    if sys.argv[1] == "killed":
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
    if (child := os.fork()) == 0:
        share_fork_server()
        try:
            with running_processes(fork_target.exit_with_parent_matching, [(server,)]) as found:
                os._exit(wait_for_processes(found, 1.0)[0])
        except PerennialError as error:
            print(error, flush=True)
            os._exit(7)
    _, status = os.waitpid(child, 0)
    raise SystemExit(os.waitstatus_to_exitcode(status))
"""
TARGET = """
import os, sys

def exit_with_parent_matching(server):
    sys.exit(0 if os.getppid() == server else 9)
"""


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    """Arguments of `run_module` for processes that behave as named."""
    (tmp_path / "behaviour.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)

    def of(how: str, mark: str = "") -> tuple[object, ...]:
        variables = {"MARK": mark, "READY": f"{tmp_path}/ready-"}
        return "behaviour", [how], variables, tmp_path / f"{how}.log"

    return of


def test_a_module_runs_with_its_own_arguments_environment_and_log(arguments, tmp_path):
    with running_processes(run_module, [arguments("succeeds", "set")]) as processes:
        assert wait_for_processes(processes, 1.0) == {0: 0}
    assert (tmp_path / "succeeds.log").read_text() == "started behaviour set False\n"


@pytest.mark.parametrize(("other", "code"), [("waits", -signal.SIGTERM), ("deaf", -signal.SIGKILL)])
def test_when_one_fails_the_others_are_ended(arguments, other, code):
    both = [arguments(other), arguments("fails", other)]
    with running_processes(run_module, both) as processes:
        codes = wait_for_processes(processes, 0.2)
    assert list(codes.items()) == [(1, 3), (0, code)]


@pytest.mark.timeout(60)
def test_a_module_ends_without_waiting_for_its_own_processes(arguments):
    with running_processes(run_module, [arguments("leaves a child")]) as processes:
        assert wait_for_processes(processes, 1.0) == {0: 0}


def test_leaving_the_block_kills_what_still_runs(arguments, tmp_path):
    with running_processes(run_module, [arguments("deaf")]) as (process,):
        pass
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(("server", "code"), [("alive", 0), ("killed", 7)])
def test_a_fork_uses_the_server_that_its_parent_started(tmp_path, server, code):
    (tmp_path / "fork_target.py").write_text(TARGET)
    (tmp_path / "sharing.py").write_text(SHARING)
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, tmp_path / "sharing.py", server], capture_output=True, text=True,
        check=False, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert ("the fork server was killed" in done.stdout) == (server == "killed")


def test_threads_start_processes_at_once_and_each_waits_for_its_own(arguments):
    before, main = dict(os.environ), sys.modules["__main__"]

    def run_several(code):
        return [_exit_code(code) for _ in range(8)]

    def _exit_code(code):
        with running_processes(sys.exit, [(code,)]) as found:
            return wait_for_processes(found, 5.0)[0]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(run_several, range(1, 5)))
    assert found == [[code] * 8 for code in range(1, 5)]
    assert dict(os.environ) == before
    assert sys.modules["__main__"] is main
