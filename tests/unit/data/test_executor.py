"""Work over partitions gives equal bytes wherever it runs, and ends in a named error or not at all."""

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import polars as pl
import psutil
import pytest

from dask_cluster import SUPPORT, dask_cluster
from flight_suites import expect
from partition_work import (
    fill_memory,
    kill_itself,
    kill_itself_once,
    sleep,
    summarize,
    waits_for_outages,
)
from perennial.clients.object_store import LocalObjectStore
from perennial.clients.outages import OUTAGE_SECONDS, waiting_out_outages
from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.environment import CORES, DASK_SCHEDULER, DASK_TLS
from perennial.contracts.errors import OutageError, PerennialError
from perennial.data import executor as executors
from perennial.data.executor import available_cores, open_executor
from perennial.data.row_groups import index_partitions
from perennial.snapshot_data import pinning
from perennial.snapshot_data.manifest import take_indexed_snapshot
from perennial.validate_data.config import ExpectationsSection
from perennial.validate_data.suites.document import Suite
from perennial.validate_data.validation import validate_snapshot

TASKS = range(12)
SUITE = Suite(name="own", expectations=(expect("column_mean_to_be_between", "x", max_value=100),))
EXPECTED = [summarize(number) for number in TASKS]


@pytest.fixture
def months(tmp_path) -> DataSection:
    """Eight partitions of a month each."""
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(8):
        day = pl.datetime(2024, 1 + number, pl.int_range(1, 29))
        table = pl.select(at=day, label=pl.int_range(28) % 2, x=pl.int_range(28) + number * 0.1)
        table.write_parquet(folder / f"{number}.parquet")
    return DataSection(uri=str(folder), label="label", time="at")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with dask_cluster(tmp_path_factory.mktemp("dask")) as cluster:
        yield cluster


@pytest.fixture
def on_dask(cluster, monkeypatch):
    monkeypatch.setenv(DASK_SCHEDULER, cluster.address)
    return cluster


def children():
    return {each.pid for each in psutil.Process().children(recursive=True)}


LATER = """
import os
from partition_work import environment_of, summarize
from perennial.data.executor import open_executor

with open_executor(2, workers=2) as executor:
    list(executor.map(summarize, range(2)))  # the fork server runs from here on
os.environ["LOADED_LATER"] = "yes"
with open_executor(2, workers=2) as executor:
    print(list(executor.map(environment_of, ["LOADED_LATER"])))
"""


class TestLocally:
    def test_a_pool_gives_what_one_process_gives_in_the_order_of_the_tasks(self):
        before = children()
        with open_executor(len(TASKS), workers=2) as executor:
            assert list(executor.map(summarize, TASKS)) == EXPECTED
        left = [psutil.Process(pid).name() for pid in children() - before]
        assert len(left) <= 2, left  # the fork server and the tracker, which end with this process

    def test_one_task_or_one_core_needs_no_process(self):
        for tasks, workers in ((1, 8), (5, 1)):
            with open_executor(tasks, workers) as executor:
                assert isinstance(executor, ThreadPoolExecutor)
                assert list(executor.map(summarize, TASKS)) == EXPECTED

    def test_workers_have_the_variables_of_now_and_one_thread(self):
        # In an interpreter of its own: a fork server that has imported polars keeps its threads.
        found = subprocess.run(
            [sys.executable, "-c", LATER], check=True, capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
        assert found.stdout.strip() == "[('yes', '1', 1)]"

    def test_workers_wait_out_outages_where_the_run_does(self):
        with open_executor(2, workers=2) as executor:
            assert list(executor.map(waits_for_outages, [0])) == [False]
            with waiting_out_outages():
                assert list(executor.map(waits_for_outages, [0])) == [True]

    def test_a_killed_process_is_a_named_error(self):
        with (
            pytest.raises(PerennialError, match="one of 2 worker processes was killed") as caught,
            open_executor(2, workers=2) as executor,
        ):
            list(executor.map(kill_itself, range(2)))
        assert "memory" in caught.value.action

    def test_workers_end_with_a_process_that_is_killed(self):
        program = (
            "import psutil, time\n"
            "from perennial.data.executor import open_executor\n"
            "from partition_work import summarize\n"
            "with open_executor(2, workers=2) as executor:\n"
            "    list(executor.map(summarize, range(4)))\n"
            "    print(*[each.pid for each in psutil.Process().children(recursive=True)], flush=True)\n"
            "    time.sleep(60)\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        )  # fmt: skip
        with process:
            pids = [int(pid) for pid in process.stdout.readline().split()]
            process.kill()
        assert len(pids) >= 3  # two workers and the fork server
        psutil.wait_procs(
            [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=20
        )
        assert [pid for pid in pids if psutil.pid_exists(pid)] == []

    def test_an_error_of_the_work_arrives_as_it_is(self):
        with pytest.raises(TypeError), open_executor(2, workers=2) as executor:
            list(executor.map(summarize, ["a", "b"]))

    def test_a_script_without_a_guard_is_not_run_again(self, tmp_path):
        script = tmp_path / "script.py"
        script.write_text(
            "print('once')\n"
            "from perennial.data.executor import open_executor\n"
            "from partition_work import summarize\n"
            "with open_executor(2, workers=2) as executor:\n"
            "    print(len(list(executor.map(summarize, range(3)))))\n"
        )
        done = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        )  # fmt: skip
        assert done.stdout == "once\n3\n", done.stderr


class TestCores:
    def test_the_request_of_the_pod_counts(self, monkeypatch):
        monkeypatch.setenv(CORES, "2.5")
        assert available_cores() == 3
        monkeypatch.setenv(CORES, "many")
        with pytest.raises(PerennialError, match="not a number of cores"):
            available_cores()

    @pytest.mark.parametrize(
        ("files", "cores"),
        [
            ({"cpu.max": "150000 100000"}, 2),
            ({"cpu.max": "max 100000"}, 8),
            ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 1),
            ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
            ({}, 8),
        ],
    )
    def test_a_quota_of_the_cgroup_counts(self, tmp_path, monkeypatch, files, cores):
        monkeypatch.delenv(CORES, raising=False)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
        monkeypatch.setattr(executors, "_CGROUP", tmp_path)
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        assert available_cores() == cores


class TestOnDask:
    def test_two_workers_give_the_same_bytes_as_one_process(self, on_dask, caplog):
        with open_executor(len(TASKS)) as executor:
            assert list(executor.map(summarize, TASKS)) == EXPECTED
        assert "is not encrypted" in caplog.text

    def test_a_worker_killed_in_the_middle_changes_no_byte(self, on_dask, tmp_path):
        with open_executor(len(TASKS)) as executor:
            marker = [str(tmp_path / "killed")] * len(TASKS)
            assert list(executor.map(kill_itself_once, marker, TASKS)) == EXPECTED
        assert (tmp_path / "killed").exists()

    def test_work_that_kills_every_worker_is_given_up_by_name(self, on_dask):
        with (
            pytest.raises(PerennialError, match="a task killed 4 Dask workers") as caught,
            open_executor(1) as executor,
        ):
            executor.submit(kill_itself, 0).result()
        assert "memory" in caught.value.evidence

    def test_workers_wait_out_outages_where_the_run_does(self, on_dask):
        with waiting_out_outages(), open_executor(2) as executor:
            assert list(executor.map(waits_for_outages, [0])) == [True]

    def test_a_snapshot_is_the_same_wherever_its_partitions_are_read(
        self, on_dask, months, monkeypatch
    ):
        monkeypatch.setattr(pinning, "_BATCH_FILES", 1)
        there = take_indexed_snapshot(months, SplitSection())
        monkeypatch.delenv(DASK_SCHEDULER)
        here = take_indexed_snapshot(months, SplitSection())
        assert there.snapshot == here.snapshot
        assert there.summaries.equals(here.summaries)

    def test_facts_counts_and_row_groups_are_the_same_bytes(
        self, on_dask, months, tmp_path, monkeypatch
    ):
        snapshot = take_indexed_snapshot(months, SplitSection()).snapshot
        section = ExpectationsSection(min_rows=50, suite=SUITE.to_json())
        there, here = (LocalObjectStore(tmp_path / name) for name in ("there", "here"))
        validate_snapshot(snapshot, section, there, "inputs")
        index_partitions(snapshot, there)
        monkeypatch.delenv(DASK_SCHEDULER)
        validate_snapshot(snapshot, section, here, "inputs")
        index_partitions(snapshot, here)
        kept = {each.key for each in there.list("")}
        assert kept == {each.key for each in here.list("")}
        assert len(kept) > 3 * len(snapshot.files)
        assert all(there.read(key) == here.read(key) for key in kept)

    def test_workers_of_other_versions_are_refused(self, on_dask, monkeypatch):
        monkeypatch.setattr(executors, "version", lambda _: "0.1")  # in this process alone
        with pytest.raises(PerennialError, match="runs other versions") as caught, open_executor(1):
            pass
        assert "polars" in caught.value.evidence
        assert "here 0.1" in caught.value.evidence

    def test_a_cluster_without_a_package_that_the_work_needs_is_refused(
        self, on_dask, tmp_path, monkeypatch
    ):
        """As that of the data image, which has no PyTorch, where rows are encoded ahead."""
        (tmp_path / "own-1.5.dist-info").mkdir()
        (tmp_path / "own-1.5.dist-info" / "METADATA").write_text("Name: own\nVersion: 1.5\n")
        monkeypatch.syspath_prepend(tmp_path)  # in this process alone
        with (
            pytest.raises(PerennialError, match="runs other versions") as caught,
            open_executor(1, packages=["own"]),
        ):
            pass
        assert caught.value.evidence == "own none, here 1.5"
        assert "images.trainer" in caught.value.action


def test_a_scheduler_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setattr(executors, "_PROMPT_SECONDS", 0.5)
    monkeypatch.setenv(DASK_SCHEDULER, "tcp://127.0.0.1:9")
    with (
        pytest.raises(OutageError, match=r"scheduler tcp://127\.0\.0\.1:9 does not answer"),
        open_executor(1),
    ):
        pass


def test_a_scheduler_without_workers_is_named(monkeypatch, tmp_path):
    with dask_cluster(tmp_path, workers=0) as cluster:
        monkeypatch.setenv(DASK_SCHEDULER, cluster.address)
        monkeypatch.setenv(OUTAGE_SECONDS, "4")
        with (
            pytest.raises(OutageError, match="has no workers"),
            waiting_out_outages(),
            open_executor(1),
        ):
            pass


def test_a_scheduler_that_ends_in_the_middle_is_named(monkeypatch, tmp_path):
    def work():
        with open_executor(4) as executor:
            found = executor.map(sleep, [0.1, 30, 30, 30])
            assert next(found) == 0.1
            cluster.processes[0].kill()
            list(found)

    with dask_cluster(tmp_path, workers=1) as cluster:
        monkeypatch.setenv(DASK_SCHEDULER, cluster.address)
        with pytest.raises(OutageError, match=f"the Dask scheduler {cluster.address} was lost"):
            work()


def test_a_worker_out_of_memory_is_restarted_a_bounded_number_of_times(monkeypatch, tmp_path):
    with dask_cluster(tmp_path, workers=1, memory="300MB", allowed_failures=1) as cluster:
        monkeypatch.setenv(DASK_SCHEDULER, cluster.address)
        with (
            pytest.raises(PerennialError, match="a task killed 2 Dask workers") as caught,
            open_executor(1) as executor,
        ):
            executor.submit(fill_memory, 1000).result()
        assert "95%" in caught.value.evidence
        assert "exceeded 95% memory budget" in (tmp_path / "dask-1.log").read_text()
        with open_executor(1) as executor:  # the nanny started it again
            assert executor.submit(summarize, 3).result() == EXPECTED[3]


def test_nothing_of_a_cluster_is_left(tmp_path):
    with dask_cluster(tmp_path, workers=1) as cluster:
        pids = [each.pid for each in cluster.processes]
        address = cluster.address
    assert not any(psutil.pid_exists(pid) for pid in pids)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", int(address.rpartition(":")[2])))


def test_certificates_are_needed_for_tls(monkeypatch, tmp_path):
    monkeypatch.setenv(DASK_SCHEDULER, "tls://127.0.0.1:9")
    monkeypatch.setenv(DASK_TLS, str(tmp_path))
    with pytest.raises(PerennialError, match="no certificates") as caught, open_executor(1):
        pass
    assert str(tmp_path / "tls.key") in caught.value.evidence
