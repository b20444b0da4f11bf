"""A terminated step leaves no job behind: real processes, real signals."""

import signal
import time

import pytest

from launching import each_kind, job_name, start_step


def wait_for(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@each_kind
@pytest.mark.parametrize("pause", [0.0, 0.5], ids=["as it is created", "while it runs"])
def test_sigterm_deletes_the_job_and_ends_the_step_within_a_second(
    cluster, launched, tmp_path, bucket, *, kind, pause
):
    launched("forever")
    step = start_step(cluster, tmp_path, bucket, kind=kind)
    wait_for(lambda: cluster.store.created)
    time.sleep(pause)
    step.send_signal(signal.SIGTERM)
    assert step.wait(10.0) == 143
    assert cluster.store.deleted == [job_name(bucket)]
    wait_for(lambda: not cluster.store.all(kind.plural))
    assert len(cluster.store.created) == 1


@each_kind
def test_a_step_that_was_killed_is_taken_over_by_its_next_try(
    cluster, launched, kind, tmp_path, bucket
):
    launched("forever")
    killed = start_step(cluster, tmp_path, bucket, kind=kind)
    wait_for(lambda: cluster.store.created)
    killed.kill()
    killed.wait()
    cluster.rights.clear()
    again = start_step(cluster, tmp_path, bucket, kind=kind)
    wait_for(lambda: ("", "pods/log", "get") in cluster.rights)
    again.send_signal(signal.SIGTERM)
    assert again.wait(10.0) == 143
    assert len(cluster.store.created) == 1
    assert cluster.store.deleted == [job_name(bucket)]
