"""An event of another system starts one run, by words that are arguments and never a command."""

import copy
import os

import pytest
import yaml

from cluster_manifests import BASE, K8S, build, mistakes, needs_kubectl
from pipelines import cli

FOLDER = K8S / "components" / "events"
SENSOR = yaml.safe_load((FOLDER / "sensor.yaml").read_text())
SOURCE = yaml.safe_load((FOLDER / "event-source.yaml").read_text())
(TRIGGER,) = (each["template"]["k8s"] for each in SENSOR["spec"]["triggers"])
JOB = TRIGGER["source"]["resource"]
(CONTAINER,) = JOB["spec"]["template"]["spec"]["containers"]


def words(body):
    """The Job's command line after an event, with its parameters applied as Argo Events does."""
    args = list(CONTAINER["args"])
    for parameter in TRIGGER["parameters"]:
        *path, index = parameter["dest"].split(".")
        assert path == ["spec", "template", "spec", "containers", "0", "args"]
        key = parameter["src"]["dataKey"].removeprefix("body.")
        args[int(index)] = body.get(key, parameter["src"].get("value"))
    return [*CONTAINER["command"][1:], *args]


def test_what_an_event_says_is_the_reason_and_the_evidence():
    options = cli._parser().parse_args(
        words({"reason": "labels; rm -rf /", "evidence": '{"rows":1}'})
    )
    assert options.verb.__name__ == "trigger"
    assert (options.model, options.pipeline) == ("MODEL", "monitoring")
    assert (options.reason, options.evidence) == ("labels; rm -rf /", '{"rows":1}')
    assert options.force is False
    assert cli._parser().parse_args(words({"reason": "why"})).evidence == "{}"


@pytest.mark.parametrize("reason", ["--force", "--wait", "-h"])
def test_an_event_cannot_pass_options(reason, capsys):
    with pytest.raises(SystemExit):
        cli._parser().parse_args(words({"reason": reason}))
    assert "usage" in capsys.readouterr().err


def test_the_sensor_listens_to_what_the_source_sends():
    (dependency,) = SENSOR["spec"]["dependencies"]
    assert dependency["eventSourceName"] == SOURCE["metadata"]["name"]
    assert dependency["eventName"] in SOURCE["spec"]["webhook"]
    assert {each["src"]["dependencyName"] for each in TRIGGER["parameters"]} == {dependency["name"]}
    for hook in SOURCE["spec"]["webhook"].values():
        assert set(hook["authSecret"]) == {"name", "key"}, "a token by reference, on every endpoint"


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
