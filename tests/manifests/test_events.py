"""An event of another system starts one run, if it is signed; its words are never arguments."""

import copy
import json
import os
from datetime import UTC, datetime

import pytest
import yaml

from cluster_manifests import BASE, K8S, build, mistakes, needs_kubectl
from deployments import contract, profile
from perennial import cli, verb_errors
from perennial.deployment.credentials import connect
from perennial.deployment.desired import desire
from perennial.deployment.operations import TargetCluster
from perennial.deployment.plan import apply
from perennial.deployment.signed_event import Event, sign
from perennial.deployment.verbs import REFUSED
from pipeline_server import pipeline_server

FOLDER = K8S / "components" / "events"
SENSOR = yaml.safe_load((FOLDER / "sensor.yaml").read_text())
SOURCE = yaml.safe_load((FOLDER / "event-source.yaml").read_text())
(TRIGGER,) = (each["template"]["k8s"] for each in SENSOR["spec"]["triggers"])
JOB = TRIGGER["source"]["resource"]
(CONTAINER,) = JOB["spec"]["template"]["spec"]["containers"]


KEY = "k" * 64


def as_argo_hands_on(body):
    """The Job's annotation after a request: Argo Events writes the body anew, as Go does."""
    compact = json.dumps(json.loads(body), separators=(",", ":"), ensure_ascii=False)
    compact = compact.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    (parameter,) = TRIGGER["parameters"]
    assert parameter["src"] == {"dependencyName": "model-event", "dataKey": "body"}
    assert parameter["dest"] == "spec.template.metadata.annotations.perennial/event"
    return compact


@pytest.fixture
def mounted(tmp_path, bucket, monkeypatch):
    """Runs the Job's command with its files; texts of events stand in no argument or variable."""
    for folder in ("event", "key"):
        (tmp_path / folder).mkdir()
    (tmp_path / "key" / "signing-key").write_text(KEY)
    with pipeline_server() as (server, url):
        where = profile(url, stores={"store_uri": f"{bucket}/store"})
        target = TargetCluster(where, connect(where))
        list(apply(target.api, desire(contract(), where)))
        monkeypatch.setattr("perennial.deployment.profile.load_profile", lambda path: where)

        def run(body, job="job-1"):
            (tmp_path / "event" / "body").write_text(as_argo_hands_on(body))
            (tmp_path / "event" / "job").write_text(job)
            words = [
                word.replace("/etc/perennial-key", str(tmp_path / "key"))
                .replace("/etc/perennial-event", str(tmp_path / "event"))
                .replace("MODEL", "flights-late")
                for word in [*CONTAINER["command"][1:], *CONTAINER["args"]]
            ]
            return cli.main(words), list(server.runs.values())

        yield run


def signed(reason="labels <corrected> & $(AWS_SECRET_ACCESS_KEY) {{=1+1}}", model="flights-late"):
    event = Event(model=model, reason=reason, evidence={"rows": 120, "why": reason})
    return sign(event, KEY.encode(), datetime.now(UTC))


def test_a_signed_event_starts_one_run_with_its_reason_as_written(mounted, capsys):
    body = signed()
    code, runs = mounted(body)
    assert code == 0
    (run,) = runs
    assert run["display_name"].startswith("flights-late monitoring")
    message = json.loads(run["description"])
    assert message["reason"] == "labels <corrected> & $(AWS_SECRET_ACCESS_KEY) {{=1+1}}"
    assert message["evidence"]["rows"] == 120

    # The Job that was killed comes again, and finds its run; another event has to wait for that
    # run's end, and anybody else repeats the event.
    code, runs = mounted(body)
    assert (code, len(runs)) == (0, 1)
    assert mounted(signed("labels corrected"))[0] == verb_errors.BAD_INPUT
    assert "under way" in capsys.readouterr().err
    code, runs = mounted(body, job="job-2")
    assert (code, len(runs)) == (REFUSED, 1)
    assert "the event was accepted before" in capsys.readouterr().err


def test_an_event_that_is_not_signed_starts_nothing_and_is_not_tried_again(mounted, capsys):
    forged = json.loads(signed())
    forged["event"] = forged["event"].replace("120", "121")
    code, runs = mounted(json.dumps(forged))
    assert (code, runs) == (REFUSED, [])
    assert "signature does not fit" in capsys.readouterr().err
    (rule,) = JOB["spec"]["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"]["values"] == [REFUSED]


def test_nothing_of_an_event_is_an_argument_or_a_variable():
    assert "env" not in CONTAINER
    assert not any("$" in word for word in [*CONTAINER["command"], *CONTAINER["args"]])
    destinations = [each["dest"] for each in TRIGGER["parameters"]]
    assert all(".annotations." in each for each in destinations)


def test_the_mounts_are_what_the_arguments_name():
    pod = JOB["spec"]["template"]["spec"]
    mounts = {each["name"]: each["mountPath"] for each in CONTAINER["volumeMounts"]}
    files = set()
    for volume in pod["volumes"]:
        for kind in ("downwardAPI", "secret"):
            for item in volume.get(kind, {}).get("items", ()):
                files.add(f"{mounts[volume['name']]}/{item['path']}")
    named = {word.split("=")[1] for word in CONTAINER["args"] if "=/etc/perennial-" in word}
    assert named == files


def test_the_source_speaks_tls_and_asks_for_a_token():
    for hook in SOURCE["spec"]["webhook"].values():
        assert hook["url"].startswith("https://")
        for secret in ("authSecret", "serverCertSecret", "serverKeySecret"):
            assert set(hook[secret]) == {"name", "key"}, "by reference, on every endpoint"


def test_the_sensor_listens_to_what_the_source_sends():
    (dependency,) = SENSOR["spec"]["dependencies"]
    assert dependency["eventSourceName"] == SOURCE["metadata"]["name"]
    assert dependency["eventName"] in SOURCE["spec"]["webhook"]
    assert {each["src"]["dependencyName"] for each in TRIGGER["parameters"]} == {dependency["name"]}


def test_the_job_that_is_made_is_a_real_one_and_gets_no_token_of_the_cluster():
    assert mistakes(JOB) == []
    pod = JOB["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["securityContext"]["runAsNonRoot"] is True


@pytest.mark.parametrize(
    ("item", "damage"),
    [
        (SENSOR, lambda o: o["spec"]["dependencies"][0].pop("eventName")),
        (SENSOR, lambda o: o["spec"]["triggers"][0]["template"]["k8s"].update(sourc={})),
        (SOURCE, lambda o: o["spec"]["webhook"]["model-event"].update(secret="x")),
        (SOURCE, lambda o: o["spec"]["webhook"]["model-event"].update(port=12000)),
    ],
    ids=["missing", "unknown in a trigger", "unknown in a webhook", "of another type"],
)  # fmt: skip
def test_a_damaged_object_is_noticed(item, damage):
    assert mistakes(item) == []
    damaged = copy.deepcopy(item)
    damage(damaged)
    assert mistakes(damaged) != []


def test_the_sensor_may_make_jobs_and_nothing_else():
    rules = yaml.safe_load((FOLDER / "role.yaml").read_text())["rules"]
    assert rules == [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create"]}]


@needs_kubectl
def test_an_overlay_reaches_into_the_job(tmp_path):
    (tmp_path / "profile.toml").write_text("")
    pinned = {"newName": "r/control", "digest": "sha256:" + "0" * 64}
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "kustomize.config.k8s.io/v1beta1",
                "kind": "Kustomization",
                "resources": [os.path.relpath(BASE, tmp_path)],
                "components": [os.path.relpath(FOLDER, tmp_path)],
                "configMapGenerator": [{"name": "perennial-profile", "files": ["profile.toml"]}],
                "images": [{"name": "perennial-control", **pinned}],
            }
        )
    )
    objects = {(item["kind"], item["metadata"]["name"]): item for item in build(tmp_path)}
    (name,) = [name for kind, name in objects if kind == "ConfigMap"]
    job = objects["Sensor", "perennial"]["spec"]["triggers"][0]["template"]["k8s"]["source"][
        "resource"
    ]
    pod = job["spec"]["template"]["spec"]
    assert [v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v] == [name]
    assert name != "perennial-profile"
    assert pod["containers"][0]["image"] == f"r/control@{pinned['digest']}"
    assert ("ServiceAccount", pod["serviceAccountName"]) in objects
