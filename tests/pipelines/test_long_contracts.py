"""A contract that is too long for KFP's parameters works as any other, here and on a cluster."""

import os
import subprocess
import sys

import pytest

from deployments import contract, profile
from perennial.clients.object_store import open_store
from perennial.contract import Contract
from perennial.contracts.errors import PerennialError
from perennial.deployment.credentials import connect
from perennial.deployment.desired import desire
from perennial.deployment.operations import TargetCluster, difference, start_deployed, submit
from perennial.deployment.plan import apply, observe, plan
from perennial.deployment.run_request import RunRequest
from perennial.deployment.watch import watch
from perennial.runs import Home, step_records
from perennial.validate_data.config import ColumnExpectation, ExpectationsSection
from pipeline_server import pipeline_server

PLACES = [f"shelf {number}" for number in range(20_000)]
MANUAL = RunRequest("training", "looked odd")


def long_contract(uri, places=PLACES):
    allowed = ColumnExpectation(allowed=tuple(places))
    return contract(
        name="flights", uri=uri, expectations=ExpectationsSection(columns={"place": allowed})
    )


@pytest.mark.full  # test_hostile_texts.py runs a laptop's steps with awkward texts
def test_on_a_laptop_contract_and_section_reach_their_steps_whole(project):
    # Linux takes no argument of a program that is longer than 128 KiB.
    allowed = ", ".join(f'"{place}"' for place in ["home", "search", *PLACES])
    with (project / "contract.toml").open("a") as file:
        file.write(f"\n[expectations.columns.place]\nallowed = [{allowed}]\n")
    done = subprocess.run(
        [sys.executable, "-m", "perennial.cli", "run", str(project / "contract.toml")],
        env=os.environ | {"PERENNIAL_HOME": str(project / "home")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    # The one place of three that is not listed stops the run: the list has arrived.
    assert "validate_data failed" in done.stderr
    assert "place: unlisted share at most 0, observed 0.33" in done.stderr
    home = Home(project / "home")
    (run,) = home.runs()
    assert [step.status for step in step_records(home.folder(run.run_id))] == ["finished", "failed"]
    assert run.parameters["contract"].startswith(f"{home.store_uri}/parcels/")
    assert run.data_uri == str(project / "data")


@pytest.fixture
def cluster(bucket):
    with pipeline_server() as (server, url):
        where = profile(url, stores={"store_uri": f"{bucket}/store"})
        yield server, TargetCluster(where, connect(where)), open_store(f"{bucket}/store")


def deploy(target, wanted):
    return list(apply(target.api, desire(wanted, target.profile)))


def parcels(store):
    return [item.key for item in store.list("parcels/")]


def test_a_deployment_stores_it_once_and_passes_its_address(cluster, bucket):
    server, target, store = cluster
    wanted = long_contract(f"{bucket}/data")
    assert any(action.text.startswith("store the contract") for action in deploy(target, wanted))
    (key,) = parcels(store)
    assert Contract.from_json(store.read(key)) == wanted
    (schedule,) = server.schedules.values()
    assert schedule["runtime_config"]["parameters"]["contract"] == f"{bucket}/store/{key}"
    assert deploy(target, wanted) == []


def test_looking_first_stores_nothing(cluster, bucket):
    _, target, store = cluster
    wanted = desire(long_contract(f"{bucket}/data"), target.profile)
    planned = [action.text for action in plan(wanted, observe(target.api, wanted))]
    assert any(text.startswith("store the contract as ") for text in planned)
    assert parcels(store) == []


def test_what_reads_a_deployed_contract_follows_the_address(cluster, bucket):
    _, target, _ = cluster
    deploy(target, long_contract(f"{bucket}/data"))
    open_store(f"{bucket}/data").write("a.parquet", b"rows")
    assert "started" in [watch(target, "flights") for _ in range(2)][1]
    changed = desire(long_contract(f"{bucket}/data", PLACES[:-1]), target.profile)
    lines = list(difference(target, changed, observe(target.api, changed)))
    assert [line[:36] for line in lines] == [
        f"{sign} expectations.columns.place.allowed"[:36] for sign in "-+"
    ]


def test_a_submitted_run_gets_the_contract_on_disk(cluster, bucket):
    server, target, store = cluster
    run = submit(target, long_contract(f"{bucket}/data"), MANUAL)
    (key,) = parcels(store)
    given = server.runs[run]["runtime_config"]["parameters"]["contract"]
    assert given == f"{bucket}/store/{key}"


@pytest.mark.parametrize("damage", ["deleted", "overwritten"])
def test_a_lost_contract_starts_no_run_and_the_next_deployment_brings_it_back(
    cluster, bucket, damage
):
    server, target, store = cluster
    wanted = long_contract(f"{bucket}/data")
    deploy(target, wanted)
    (key,) = parcels(store)
    store.delete(key) if damage == "deleted" else store.write(key, b"{}")
    with pytest.raises(PerennialError, match="parcels/") as caught:
        start_deployed(target, "flights", MANUAL)
    assert "`perennial deploy` or `submit` the contract again" in caught.value.action
    assert server.runs == {}
    (action,) = deploy(target, wanted)
    assert action.text.startswith("store the contract")
    assert start_deployed(target, "flights", MANUAL) in server.runs
