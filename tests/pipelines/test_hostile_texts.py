"""Texts of contracts, reasons, events and step outputs reach each step as written, without secrets."""

import json
import os
import subprocess
import sys

import polars as pl
import pytest
import yaml

from command_line import parse
from deployments import contract, profile
from perennial import cli
from perennial.contracts.errors import PerennialError
from perennial.contracts.monitoring import RetrainingDecision
from perennial.decide_retraining.step import trigger_evidence
from perennial.deployment.credentials import connect
from perennial.deployment.desired import desire
from perennial.deployment.operations import TargetCluster, start_deployed, submit
from perennial.deployment.plan import apply
from perennial.deployment.run_request import RunRequest
from perennial.steps.parameters import resolve
from pipeline_server import pipeline_server
from text_expansion import arguments_of, parameters_in

pytestmark = pytest.mark.hostile

HOSTILE = (
    "key=$(AWS_SECRET_ACCESS_KEY) $$(X) sum={{=1+1}} {{workflow.name}} {{workflow.foo}} US$$5\n"
)
SECRETS = {"AWS_ACCESS_KEY_ID": "store/id", "AWS_SECRET_ACCESS_KEY": "store/key"}
VARIABLES = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "the-secret-key"}


def hostile_contract():
    """Free text wherever a contract has some, names of columns and values included."""
    made = contract()
    model = made.model.model_copy(update={"options": {HOSTILE: [HOSTILE, {"deep": HOSTILE}]}})
    return made.model_copy(update={"model": model})


@pytest.fixture(scope="module")
def placed():
    desired = desire(hostile_contract(), profile(stores={"secrets": SECRETS}))
    return {each.name: next(yaml.safe_load_all(each.package)) for each in desired.pipelines}


def containers(spec):
    return [each["container"] for each in spec["deploymentSpec"]["executors"].values()]


def received(container, parameters):
    """What a step reads, behind Argo and the kubelet."""
    arguments = arguments_of(container, parameters, VARIABLES)
    assert not any(secret in text for secret in VARIABLES.values() for text in arguments)
    return {key: resolve(value) for key, value in parameters_in(arguments).items()}


@pytest.mark.parametrize("kind", ["training", "monitoring"])
@pytest.mark.parametrize("how", ["submitted", "triggered"])
def test_contract_reason_and_evidence_reach_every_step_as_written(placed, kind, how):
    evidence = json.dumps({HOSTILE: [HOSTILE]})
    with pipeline_server() as (server, url):
        where = profile(url, stores={"secrets": SECRETS})
        target = TargetCluster(where, connect(where))
        if how == "submitted":
            run = submit(target, hostile_contract(), RunRequest(kind, HOSTILE, evidence))
        else:
            list(apply(target.api, desire(hostile_contract(), where)))
            run = start_deployed(target, "flights-late", RunRequest(kind, HOSTILE, evidence))
        parameters = server.runs[run]["runtime_config"]["parameters"]
    for container in containers(placed["continuous-training"]):
        found = received(container, parameters)
        assert found["contract"] == hostile_contract().to_json()
        if kind == "training":
            trigger = json.loads(found["trigger"])
            assert (trigger["reason"], trigger["evidence"]) == (HOSTILE, {HOSTILE: [HOSTILE]})


def test_the_evidence_of_monitoring_reaches_the_training_as_written(placed):
    made = RetrainingDecision(
        retrain=True,
        trigger="drift",
        summary=HOSTILE,
        reasons=(HOSTILE,),
        evidence={HOSTILE: HOSTILE},
    )
    for container in containers(placed["drift-monitoring"]):
        found = received(container, {"trigger": trigger_evidence(made)})
        assert HOSTILE in json.loads(found["trigger"]).values()


@pytest.mark.parametrize(
    "cause", ["", "  \n", "a\0b", "a\x1b[2J", "\udc80", "x" * 17_000, "$" * 5000]
)
def test_a_reason_that_no_record_keeps_is_refused_before_anything_is_asked(cause):
    with pytest.raises(PerennialError) as caught:
        _ = RunRequest("training", cause).trigger
    assert caught.value.evidence
    assert caught.value.action


@pytest.mark.parametrize("evidence", ['{"a": NaN}', '{"a": "\\u0000"}', "[" * 100_000, "{'a': 1}"])
def test_evidence_that_no_record_keeps_is_refused(evidence):
    with pytest.raises(PerennialError):
        _ = RunRequest("training", "why", evidence).trigger


@pytest.mark.parametrize("reason", ["-5%", "-", "-urgent", "- a list", "--- cut", "-1", HOSTILE])
@pytest.mark.parametrize("verb", [["trigger", "m", "--profile=p"], ["promote", "m", "3"]])
def test_a_reason_may_begin_with_a_dash(verb, reason):
    assert parse([*verb, "--reason", reason])[1]["reason"] == reason


@pytest.mark.parametrize("word", ["--wait", "--", "-h", "--wait=no"])
def test_a_forgotten_reason_is_not_the_next_option(word, capsys):
    assert cli.main(["trigger", "m", "--profile=p", "--reason", word]) == 2
    assert f"'--reason': expected a text (got the option {word!r})" in capsys.readouterr().err


@pytest.mark.parametrize("uri", ["s3://b/$(HOME)", "s3://b/{{workflow.name}}", "s3://b/a$$b"])
def test_a_store_whose_address_would_be_replaced_is_refused(uri):
    with pytest.raises(ValueError, match="replaces"):
        profile(stores={"store_uri": uri})


@pytest.mark.full
def test_on_a_laptop_texts_reach_their_steps_as_written(project):
    places = ["$(HOME)", "{{$.inputs.parameters['contract']}}", "python3 $$", "mail"]
    for file in sorted((project / "data").rglob("*.parquet")):
        rows = pl.read_parquet(file)
        chosen = [places[index % len(places)] for index in range(rows.height)]
        rows.with_columns(place=pl.Series(chosen)).write_parquet(file)
    with (project / "contract.toml").open("a") as stream:
        stream.write(f"\n[expectations.columns.place]\nallowed = {json.dumps(places[:-1])}\n")
    done = subprocess.run(
        [sys.executable, "-m", "perennial.cli", "run", str(project / "contract.toml")],
        env=os.environ | {"PERENNIAL_HOME": str(project / "home")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    # Three of the four places are listed, if they arrived as they were written.
    assert "place: unlisted share at most 0, observed 0.25" in done.stderr
