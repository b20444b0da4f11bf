"""Each account's S3 policy allows what its pods were seen to do, and nothing beyond."""

import json
import os
import re
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path

import boto3
import pytest

from click_stream import CONTRACT, add_month
from deployments import contract, profile
from iam_s3 import allows, enforcing_server
from perennial import cli
from perennial.clients.object_store import open_store
from perennial.contract import Contract
from perennial.contracts.errors import PerennialError
from perennial.decide_retraining.state import monitoring_record
from perennial.deployment.s3_policy import GRANTS, s3_policy
from perennial.deployment.signed_event import Event, Gate, sign
from perennial.engine.data.stored_caches import USES, CacheUses, record_use
from perennial.steps.parameters import CARRIED_BYTES, LargeParameter, resolve

STORE = "s3://models/store"
CLICKS = contract("clicks", "s3://streams/clicks")
PROFILE = profile(stores={"store_uri": STORE})
RECORDED = json.loads(Path(__file__).with_name("s3_calls.json").read_text())
# What a healthy run does not do, and `tests/unit/steps/test_large_parameters.py` and `test_steps.py` do.
RARE = {
    "steps": [
        ["s3:GetObject", "models", "store/parcels/0.json"],
        ["s3:PutObject", "models", "store/parcels/0.json"],
        ["s3:PutObject", "models", "store/reports/run/train_model.html"],
        ["s3:GetObject", "models", "store/reports/run/train_model.html"],
    ],
    "training": [],
}
# Trainings that stream their rows, encode ahead or learn from teachers, initial weights, and studies.
SHARED = ("answers/0.safetensors", "encoded/uses.json", "fitted/0.json", "row-groups/0/0.json")
for own in (*SHARED, "studies/clicks/0/claims/0001.json"):
    for action in ("GetObject", "PutObject", "DeleteObject", "ListBucket"):
        RARE["training"].append([f"s3:{action}", "models", f"store/{own}"])
    for action in ("AbortMultipartUpload", "ListBucketMultipartUploads"):
        RARE["training"].append([f"s3:{action}", "models", f"store/{own}"])
RARE["training"].append(["s3:GetObject", "models", "store/initial/0.safetensors"])
# With `scoring.machines`.
for action in ("GetObject", "PutObject", "ListBucket"):
    RARE["training"].append([f"s3:{action}", "models", "store/scoring/run/f/scored.json"])
for action in ("DeleteObject", "AbortMultipartUpload", "ListBucketMultipartUploads"):
    RARE["steps"].append([f"s3:{action}", "models", "store/scoring/run/f/inputs/0"])
RARE["steps"] += [["s3:PutObject", "models", "store/initial/0.safetensors"], *RARE["training"]]
RARE["steps"] += RECORDED["training"]  # with `resources.launcher = "local"`, a step trains itself
RARE["steps"] += [["s3:AbortMultipartUpload", "models", "store/training/f/checkpoints/step-1/x"]]
RARE["training"] += [["s3:AbortMultipartUpload", "models", "store/training/f/checkpoints/step-1/x"]]


def policy_of(role):
    return s3_policy(role, CLICKS, PROFILE)


@pytest.mark.parametrize("role", RECORDED)
def test_every_call_of_a_run_and_of_a_monitoring_is_allowed(role):
    calls = [tuple(call) for call in RECORDED[role]]
    assert len(calls) > 10
    assert [call for call in calls if not allows(policy_of(role), call)] == []


@pytest.mark.parametrize("role", RECORDED)
def test_what_only_some_trainings_do_is_allowed(role):
    assert [call for call in RARE[role] if not allows(policy_of(role), tuple(call))] == []


@pytest.mark.parametrize("role", RECORDED)
def test_every_right_is_used(role):
    used = set()
    for call in [*RECORDED[role], *RARE[role]]:
        used |= {(action, target) for action, target, _ in allows(policy_of(role), tuple(call))}
    given = {
        (action, target)
        for statement in policy_of(role)["Statement"]
        for action in statement["Action"]
        for target in statement["Resource"]
    }
    assert given - used == set()


@pytest.mark.parametrize("role", GRANTS)
@pytest.mark.parametrize(
    "call",
    [
        ("s3:PutObject", "streams", "clicks/month=2024-01/clicks.parquet"),
        ("s3:DeleteObject", "streams", "clicks/month=2024-01/clicks.parquet"),
        ("s3:GetObject", "streams", "others/x"),
        ("s3:GetObject", "models", "elsewhere/x"),
        ("s3:GetObject", "models", "store/registry/flights.json"),
        ("s3:PutObject", "models", "store/registry/flights/0.json"),
        ("s3:PutObject", "models", "store/triggers/flights/state.json"),
        ("s3:PutObject", "models", "store/mlflow-artifacts/flights/1/artifacts/x"),
        ("s3:DeleteObject", "models", "store/snapshots/0/snapshot.json"),
        ("s3:DeleteObject", "models", "store/registry/clicks.json"),
        (
            "s3:DeleteObject",
            "models",
            "store/mlflow-artifacts/clicks/1/artifacts/model.safetensors",
        ),
        ("s3:DeleteObject", "models", "store/events/x.json"),
        ("s3:ListBucket", "models", ""),
        ("s3:PUT of a bucket", "models", ""),
    ],
    ids=" ".join,
)
def test_data_records_and_other_models_are_out_of_reach(role, call):
    assert allows(policy_of(role), call) == []


@pytest.mark.parametrize("role", sorted(set(GRANTS) - {"steps"}))
def test_only_steps_change_the_champion(role):
    for key in ("registry/clicks.json", "mlflow-artifacts/clicks/1/artifacts/model.safetensors"):
        assert allows(policy_of(role), ("s3:PutObject", "models", f"store/{key}")) == []


@pytest.fixture
def act_as(monkeypatch):
    """Calls the real store as an account, whose policy the server enforces."""
    policies = {role: policy_of(role) for role in GRANTS} | {"admin": None}
    with enforcing_server(policies) as (url, calls):

        def become(role):
            monkeypatch.setenv("AWS_ENDPOINT_URL_S3", url)
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", role)
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
            monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
            monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # keeps the keys that it first saw
            return open_store(STORE)

        become("admin")
        for name in ("models", "streams"):
            boto3.client("s3").create_bucket(Bucket=name)
        become.calls = calls
        yield become


def test_the_small_accounts_do_their_work_within_their_rights(act_as):
    long = json.dumps({"a": "x" * CARRIED_BYTES})
    act_as("deployer")
    address = LargeParameter(long, STORE).store()
    for role in ("deployer", "receiver", "watcher", "steps"):
        act_as(role)
        assert resolve(address) == long

    key, now = b"k" * 32, datetime.now(UTC)
    body = sign(Event(model="clicks", reason="r"), key, now)
    gate = Gate("clicks", key, act_as("receiver"))
    assert gate.accept(body, "job", now).reason == "r"
    assert gate.accept(body, "job", now).reason == "r"

    watcher = act_as("watcher")
    assert watcher.read("watch/clicks/state.json") is None
    watcher.replace("watch/clicks/state.json", b"{}", previous=None)
    assert open_store(CLICKS.data.uri).list() == []

    assert monitoring_record(act_as("exporter"), "clicks").read() is None
    assert set(act_as.calls) == {"admin", "deployer", "receiver", "watcher", "steps", "exporter"}


@pytest.mark.parametrize("role", RECORDED)
def test_a_training_shares_its_caches_and_deletes_expired_ones_within_its_rights(act_as, role):
    store = act_as(role)
    for key in SHARED[2:]:
        store.replace(key, b"{}", previous=None)
    long_ago = date(2020, 1, 1)
    uses = CacheUses(last_used=dict.fromkeys(SHARED[2:], long_ago))
    store.write(USES, uses.to_json().encode())
    record_use(store, ["answers/0.safetensors"])
    assert [store.read(key) for key in SHARED[2:]] == [None, None]


@pytest.mark.parametrize("role", ["watcher", "receiver", "exporter", "deployer", "training"])
def test_what_an_account_may_not_do_is_an_error_that_names_the_store(act_as, role):
    store = act_as(role)
    with pytest.raises(PerennialError, match=re.escape(STORE)) as caught:
        store.write("registry/clicks.json", b"{}")
    assert "credentials" in caught.value.action or "AccessDenied" in caught.value.evidence


def test_the_verb_prints_what_iam_reads(tmp_path, capsys, monkeypatch):
    (tmp_path / "contract.toml").write_text(CONTRACT.replace('"data"', '"s3://streams/clicks"'))
    monkeypatch.setattr("perennial.deployment.profile.load_profile", lambda path: PROFILE)
    words = ["policy", str(tmp_path / "contract.toml"), "--profile", "p.toml"]
    assert cli.main(words) == 0
    assert set(json.loads(capsys.readouterr().out)) == set(GRANTS)
    assert cli.main([*words, "--role", "exporter"]) == 0
    assert json.loads(capsys.readouterr().out) == policy_of("exporter")


def test_a_dataset_in_a_folder_has_no_policy():
    with pytest.raises(PerennialError, match="is not an address of S3"):
        s3_policy("steps", contract("clicks", "/data"), PROFILE)


def test_versions_and_kubeflows_artifacts_may_lie_elsewhere():
    where = profile(stores={"store_uri": "s3://models", "pipeline_root": "s3://kfp/root"})
    found = s3_policy("steps", CLICKS, where, artifacts="s3://mlflow/versions")
    for call in (
        ("s3:GetObject", "mlflow", "versions/1/x"), ("s3:PutObject", "kfp", "root/v2/x"),
        ("s3:ListBucket", "kfp", "root/v2/"), ("s3:GetObject", "models", "registry/clicks.json"),
    ):  # fmt: skip
        assert allows(found, call), call
    assert not allows(found, ("s3:GetObject", "mlflow", "other/x"))


NAMED = {
    "suite": "models/store/suites/clicks.json", "option": "public/bert/tokenizer.json",
    "weights": "public/vit/model.safetensors",
}  # fmt: skip


@pytest.mark.parametrize(
    ("role", "read"),
    [
        ("steps", {"suite", "option", "weights"}), ("training", {"option"}),
        ("deployer", {"suite", "option"}), ("watcher", set()), ("exporter", set()),
    ],
)  # fmt: skip
def test_files_that_the_contract_names_are_read_by_those_who_load_them(role, read):
    document = contract("clicks", "s3://streams/clicks").model_dump(mode="json")
    document["model"]["options"] = {"nested": [{"tokenizer": f"s3://{NAMED['option']}"}]}
    document["model"]["initial"] = {
        "source": "safetensors", "uri": f"s3://{NAMED['weights']}", "sha256": "0" * 64,
    }  # fmt: skip
    document["expectations"]["suite"] = f"s3://{NAMED['suite']}#sha256={'0' * 64}"
    policy = s3_policy(role, Contract.from_json(json.dumps(document)), PROFILE)
    for name, address in NAMED.items():
        bucket, _, key = address.partition("/")
        assert bool(allows(policy, ("s3:GetObject", bucket, key))) == (name in read), name
        assert not allows(policy, ("s3:GetObject", bucket, f"{key}.other"))
        assert not allows(policy, ("s3:PutObject", bucket, key))
    # A file that is missing must be an answer of 404, not of 403.
    assert bool(allows(policy, ("s3:ListBucket", "public", None))) == bool(read)


def test_a_published_snapshot_is_listed_and_read_by_the_steps():
    document = contract("clicks", "s3://streams/clicks").model_dump(mode="json")
    document["model"]["initial"] = {
        "source": "huggingface", "uri": "s3://public/vit/", "revision": "0" * 40,
    }  # fmt: skip
    found = s3_policy("steps", Contract.from_json(json.dumps(document)), PROFILE)
    for call in (
        ("s3:ListBucket", "public", f"vit/snapshots/{'0' * 40}/"),
        ("s3:GetObject", "public", f"vit/{'0' * 40}/model.safetensors"),
    ):
        assert allows(found, call)
    assert not allows(found, ("s3:GetObject", "public", "other/x"))


WORKER = """
import os, sys
if "forkserver" in " ".join(sys.orig_argv):
    from perennial.engine import worker
    main = worker.main
    def main_with_a_key_of_its_own():
        os.environ["AWS_ACCESS_KEY_ID"] = "training"
        os.environ["PERENNIAL_CACHE"] += "-of-training"
        return main()
    worker.main = main_with_a_key_of_its_own
"""


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_whole_run_and_a_monitoring_stay_within_their_rights(tmp_path):
    """What `s3_calls.json` holds; a training's processes have key and cache of their own, as its pods do."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(WORKER)
    (tmp_path / "contract.toml").write_text(CONTRACT.replace('"data"', '"s3://streams/clicks"'))
    policies = {role: policy_of(role) for role in GRANTS} | {"admin": None}
    with enforcing_server(policies) as (url, calls):
        where = {"endpoint_url": url, "region_name": "us-east-1", "aws_secret_access_key": "x"}
        store = boto3.client("s3", aws_access_key_id="admin", **where)
        for name in ("models", "streams"):
            store.create_bucket(Bucket=name)
        environment = os.environ | {
            "AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "steps", "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": "us-east-1", "PYTHONPATH": str(tmp_path / "site"),
            "PERENNIAL_HOME": str(tmp_path / "home"), "PERENNIAL_STORE_URI": STORE,
            "PERENNIAL_CACHE": str(tmp_path / "cache"),  # nothing is there from another call
        }  # fmt: skip
        for verb, months in (("run", range(3)), ("monitor", range(3, 4))):
            for month in months:
                file = add_month(tmp_path / "data", month, shift=2.0 if month > 2 else 0.0)
                store.upload_file(str(file), "streams", f"clicks/{file.parent.name}/{file.name}")
            done = subprocess.run(
                [sys.executable, "-m", "perennial.cli", verb, str(tmp_path / "contract.toml")],
                env=environment, cwd=cli.Path(cli.__file__).parents[1], capture_output=True,
                text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    for role, recorded in RECORDED.items():
        assert calls[role]
        now = {grant for call in calls[role] for grant in allows(policy_of(role), call)}
        then = {grant for call in recorded for grant in allows(policy_of(role), tuple(call))}
        assert now == then, "record the calls again"
