"""Every process of a run ends with its supervisor; no two supervisors share a home."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from perennial.contracts.environment import LEASE
from perennial.contracts.errors import PerennialError
from perennial.runs import Home
from perennial.steps.lease import EXIT_CODE, RunLease, is_held

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


def test_a_second_supervisor_is_refused_with_the_name_of_the_first(tmp_path):
    first = RunLease(tmp_path)
    first.acquire()
    assert is_held(tmp_path)
    first.name_work("continuous_training, run clicks-1")
    with pytest.raises(PerennialError, match="another run is active for clicks in home") as caught:
        RunLease(tmp_path, "clicks in home").acquire()
    assert re.fullmatch(
        rf"process {os.getpid()} since \d{{4}}-.* UTC: continuous_training, run clicks-1",
        caught.value.evidence,
    )
    assert f"kill {os.getpid()}" in caught.value.action
    first.release()
    assert not is_held(tmp_path)


def test_work_of_an_earlier_holder_is_not_taken_for_the_present_ones(tmp_path):
    earlier, present = RunLease(tmp_path), RunLease(tmp_path)
    earlier.acquire()
    earlier.name_work("run clicks-1")
    earlier.release()
    present.acquire()
    with pytest.raises(PerennialError) as caught:
        RunLease(tmp_path).acquire()
    assert "clicks-1" not in caught.value.evidence
    present.release()


def test_two_models_run_in_one_home_at_a_time(tmp_path):
    home = Home(tmp_path)
    leases = [RunLease(home.lock_folder(model)) for model in ("clicks", "views")]
    for lease in leases:
        lease.acquire()
    assert home.is_active("clicks")
    assert home.is_active("views")
    assert not home.is_active("flights")
    for lease in leases:
        lease.release()
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
