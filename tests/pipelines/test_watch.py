"""New files start one monitoring run, when they are all there; nothing is started twice."""

import time
from datetime import datetime, timedelta
from types import SimpleNamespace

import polars as pl
import pytest

from deployments import contract, profile
from perennial.clients.object_store import open_store
from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.errors import PerennialError
from perennial.deployment import watch as watching
from perennial.deployment.credentials import connect
from perennial.deployment.desired import desire
from perennial.deployment.operations import TargetCluster
from perennial.deployment.plan import apply
from perennial.deployment.watch import watch
from perennial.snapshot_data.manifest import take_snapshot
from pipeline_server import pipeline_server


@pytest.fixture
def deployed(bucket):
    with pipeline_server() as (server, url):
        where = profile(url, stores={"store_uri": f"{bucket}/store"})
        target = TargetCluster(where, connect(where))
        wanted = desire(contract(name="flights", uri=f"{bucket}/data"), where)
        list(apply(target.api, wanted))
        yield server, target, open_store(f"{bucket}/data")


def look(target, times=1):
    return [watch(target, "flights") for _ in range(times)]


def test_a_dataset_that_gained_files_is_monitored_once(deployed):
    server, target, data = deployed
    data.write("month=1/a.parquet", b"one")
    first, second, third = look(target, 3)
    assert "waiting until they stay the same" in first
    assert "+1 files; started drift-monitoring" in second
    assert "nothing new in 1 file" in third
    (run,) = server.runs.values()
    assert run["display_name"].startswith("flights monitoring")
    assert '"new_files":1' in run["description"]
    version = run["pipeline_version_reference"]["pipeline_version_id"]
    assert server.versions[version]["display_name"] == deployed_version(target, "monitoring")


def deployed_version(target, kind):
    description = target.deployed("flights").description
    return description.partition(f"{kind}=")[2].split()[0]


def test_an_upload_under_way_is_waited_for(deployed):
    server, target, data = deployed
    for number in range(4):
        data.write(f"part-{number}.parquet", b"rows")
        assert "waiting" in look(target)[0]
    assert "started" in look(target)[0]
    assert len(server.runs) == 1


def test_while_a_run_is_under_way_the_files_stay_unhandled(deployed):
    server, target, data = deployed
    data.write("a.parquet", b"one")
    look(target, 2)
    (run,) = server.runs.values()
    data.write("b.parquet", b"two")
    assert "a run is under way; the next look acts" in look(target, 2)[1]
    run["state"] = "SUCCEEDED"
    assert "+1 files; started" in look(target)[0]


def test_files_of_another_kind_do_not_count(deployed):
    server, target, data = deployed
    for key in ("_SUCCESS", "_delta_log/0.checkpoint.parquet", "_x/a.parquet", "a.parquet.tmp"):
        data.write(key, b"other")
    assert look(target, 3) == ["flights: nothing new in 0 files"] * 3
    assert server.runs == {}


def test_a_server_that_refuses_the_run_leaves_the_files_unhandled(deployed):
    server, target, data = deployed
    data.write("a.parquet", b"one")
    look(target)
    server.fault = (len(server.mutations), "refuse")
    with pytest.raises(PerennialError, match="refuses to start a run"):
        look(target)
    assert "started" in look(target)[0]


def start_unanswered(server, target, data):
    """The run of a first file, whose start was done and not answered."""
    data.write("a.parquet", b"one")
    look(target)
    server.fault = (len(server.mutations), "drop after")
    with pytest.raises(PerennialError, match="cannot be reached to start a run"):
        look(target)
    (run,) = server.runs.values()
    return run


def test_a_run_whose_start_was_not_answered_is_not_started_again(deployed):
    server, target, data = deployed
    run = start_unanswered(server, target, data)
    assert "a run is under way" in look(target)[0]
    run["state"] = "SUCCEEDED"
    assert run["run_id"] in look(target)[0]
    assert "nothing new" in look(target)[0]
    assert len(server.runs) == 1
    data.write("b.parquet", b"two")
    assert "+1 files; started" in look(target, 2)[1]
    assert len(server.runs) == 2


def test_files_that_came_after_an_unanswered_start_have_a_run_of_their_own(deployed):
    server, target, data = deployed
    run = start_unanswered(server, target, data)
    run["state"] = "SUCCEEDED"
    data.write("b.parquet", b"two")
    assert "started" in look(target, 2)[1]
    assert len(server.runs) == 2


def test_files_that_come_and_go_are_monitored_each_time(deployed):
    server, target, data = deployed
    for number in range(2):
        for change in (data.write, lambda key, _: data.delete(key)):
            data.write("kept.parquet", b"one")
            change("b.parquet", b"two")
            assert "started" in look(target, 2)[1]
            for run in server.runs.values():
                run["state"] = "SUCCEEDED"
        assert len(server.runs) == 2 * (number + 1)


def test_a_file_that_was_replaced_by_one_of_the_same_size_is_monitored(deployed):
    server, target, data = deployed
    data.write("a.parquet", b"one")
    look(target, 2)
    for run in server.runs.values():
        run["state"] = "SUCCEEDED"
    data.write("a.parquet", b"two")
    assert "+0 files; started" in look(target, 2)[1]
    assert len(server.runs) == 2


def test_a_file_that_came_went_and_comes_again_is_waited_for(deployed):
    server, target, data = deployed
    data.write("a.parquet", b"one")
    look(target, 2)
    for run in server.runs.values():
        run["state"] = "SUCCEEDED"
    data.write("b.parquet", b"two")
    assert "waiting" in look(target)[0]
    data.delete("b.parquet")
    assert "nothing new" in look(target)[0]
    data.write("b.parquet", b"two")
    assert "waiting" in look(target)[0]
    assert len(server.runs) == 1


def test_a_dataset_whose_files_are_gone_is_an_error(deployed):
    _, target, data = deployed
    data.write("a.parquet", b"one")
    look(target, 2)
    data.delete("a.parquet")
    with pytest.raises(PerennialError, match="no files any more") as raised:
        look(target)
    assert "had 1 file at the last run" in raised.value.evidence


def test_a_damaged_state_is_named_with_the_way_out(deployed):
    server, target, data = deployed
    data.write("a.parquet", b"one")
    look(target, 2)
    store = open_store(target.profile.stores.store_uri)
    store.write("watch/flights/state.json", b"garbage")
    with pytest.raises(PerennialError, match="state of the watcher cannot be read") as raised:
        look(target)
    assert "watch/flights/state.json" in raised.value.evidence
    store.delete("watch/flights/state.json")
    for run in server.runs.values():
        run["state"] = "SUCCEEDED"
    assert "started" in look(target, 2)[1]


def test_a_watcher_that_is_killed_before_it_starts_the_run_loses_nothing(deployed, monkeypatch):
    server, target, data = deployed
    data.write("a.parquet", b"one")
    look(target)

    def be_killed(*_):
        raise SystemExit(137)

    with monkeypatch.context() as patch:
        patch.setattr(watching, "start_deployed", be_killed)
        with pytest.raises(SystemExit):
            look(target)
    assert "another watcher is starting a run" in look(target)[0]
    assert server.runs == {}
    monkeypatch.setattr(watching, "START_SECONDS", 0)
    assert "+1 files; started" in look(target)[0]
    assert "nothing new" in look(target)[0]
    assert len(server.runs) == 1


def test_a_watcher_whose_clock_was_ahead_delays_no_run(deployed, monkeypatch):
    server, target, data = deployed
    data.write("a.parquet", b"one")
    look(target)

    def be_killed(*_):
        raise SystemExit(137)

    with monkeypatch.context() as patch:
        patch.setattr(watching, "start_deployed", be_killed)
        tomorrow = time.time() + 86400
        patch.setattr(watching, "time", SimpleNamespace(time=lambda: tomorrow))
        with pytest.raises(SystemExit):
            look(target)
    assert "+1 files; started" in look(target)[0]
    assert len(server.runs) == 1


def test_a_model_that_is_not_deployed_cannot_be_watched(deployed):
    _, target, _ = deployed
    with pytest.raises(PerennialError, match="nothing is deployed for a model 'trains'"):
        watch(target, "trains")


def test_what_a_snapshot_takes_counts(deployed):
    _, target, data = deployed
    for key in ("month=1/a.PARQUET", "_year=2024/b.parq"):
        data.write(key, b"rows")
    assert "+2 files; started" in look(target, 2)[1]


@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_as_many_files_are_counted_as_a_snapshot_takes(place, bucket, tmp_path):
    """One rule for both: tables of Delta, Hive's folders, what Spark and editors leave, links."""
    folder = tmp_path / "data"
    hidden = ["_delta_log/00000000000000000000.json", "_delta_log/00000000000000000010.checkpoint.parquet",
              "_SUCCESS", ".part-0.parquet.crc", "day=1/.part-1.parquet.crc", "_temporary/0/x.parquet",
              ".hidden/y.parquet", "notes.txt", "day=1/a.parquet.md5", "part-9.parquet.tmp"]  # fmt: skip
    taken = [
        "part-0.snappy.parquet",
        "day=1/a.parquet",
        "day=2/a.PARQUET",
        "_year=2024/b.pq",
        "c.parq",
    ]
    for number, key in enumerate([*taken, *hidden]):
        start = datetime(2024, 1, 1) + timedelta(days=40 * number)
        days = [start + timedelta(days=day) for day in range(40)]
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        pl.DataFrame({"id": days, "at": days, "label": [0, 1] * 20, "x": [0.5] * 40}).write_parquet(
            folder / key
        )
    (folder / "notes.txt").write_text("Parquet under such a name would be an error of both")
    if place == "folder":
        (folder / "again.parquet").symlink_to(folder / "c.parq")
        (folder / "empty").mkdir()
        uri = str(folder)
    else:
        uri = f"{bucket}/data"
        store = open_store(uri)
        for key in [*taken, *hidden]:
            store.upload(key, folder / key)
        store.write("day=3/", b"")
    data = DataSection(uri=uri, label="label", time="at", ids=("id",))
    snapshot = take_snapshot(data, SplitSection(), tmp_path / "cache")
    assert sorted(snapshot.paths) == sorted(taken)
    assert watching._listing(open_store(uri))[1] == len(snapshot.files)
