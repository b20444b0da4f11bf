"""Every process of a run ends with its supervisor; no two supervisors share a home."""

import os
import signal
import subprocess
import sys
import time

import pytest

from perennial.contracts.environment import LEASE
from perennial.contracts.errors import PerennialError
from perennial.steps.lease import EXIT_CODE, RunLease

MEMBER = (
    "import sys, time; from perennial.steps.lease import follow_lease; follow_lease();"
    "print('joined', flush=True); time.sleep(60)"
)
SUPERVISOR = (
    "import sys, time; from pathlib import Path; from perennial.steps.lease import RunLease;"
    "RunLease(Path(sys.argv[1])).acquire(); print('holding', flush=True); time.sleep(60)"
)


def address(folder):
    """As the supervisor that holds the lease now tells its members."""
    return f"{folder / 'lease'}#{(folder / 'lease').read_text()}"


def start(program, *arguments, **environment):
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
        start_new_session=True,
    )
    process.stdout.readline()
    return process


def test_member_ends_when_its_supervisor_is_killed(tmp_path):
    supervisor = start(SUPERVISOR, str(tmp_path))
    member = start(MEMBER, **{LEASE: address(tmp_path)})
    os.kill(supervisor.pid, signal.SIGKILL)
    supervisor.wait()
    assert member.wait(timeout=20) == EXIT_CODE
    supervisor.stdout.close()
    member.stdout.close()


def test_new_supervisor_waits_for_members_of_a_dead_one(tmp_path):
    supervisor = start(SUPERVISOR, str(tmp_path))
    member = start(MEMBER, **{LEASE: address(tmp_path)})
    os.kill(supervisor.pid, signal.SIGKILL)
    supervisor.wait()
    lease = RunLease(tmp_path)
    lease.acquire(timeout_seconds=20)
    assert member.poll() == EXIT_CODE or member.wait(timeout=1) == EXIT_CODE
    lease.release()
    supervisor.stdout.close()
    member.stdout.close()


def test_second_supervisor_is_refused_while_the_first_lives(tmp_path):
    first = RunLease(tmp_path)
    first.acquire()
    with pytest.raises(PerennialError, match="another run is active"):
        RunLease(tmp_path).acquire()
    first.release()
    second = RunLease(tmp_path)
    second.acquire()
    second.release()


def test_member_lives_while_its_supervisor_does(tmp_path):
    lease = RunLease(tmp_path)
    lease.acquire()
    member = start(MEMBER, **{LEASE: address(tmp_path)})
    time.sleep(1)
    assert member.poll() is None
    lease.release()
    assert member.wait(timeout=20) == EXIT_CODE
    member.stdout.close()


def test_process_that_started_under_a_dead_supervisor_does_not_join_the_next(tmp_path):
    first = RunLease(tmp_path)
    first.acquire()
    address = first.address
    first.release()
    second = RunLease(tmp_path)
    second.acquire()
    late = start(MEMBER, **{LEASE: address})
    assert late.wait(timeout=20) == EXIT_CODE
    second.release()
    late.stdout.close()
