"""A study whose first stage Katib proposes and runs, on the tiny training."""

import json
import os
import re
import signal
import sys
import threading

import pytest
import yaml

from cluster_manifests import K8S
from fake_api_server import JOBS, FakeCluster
from fake_katib import FakeKatib
from fake_operator import step_pod
from launching import eventually
from perennial.clients.object_store import open_store
from perennial.contracts.environment import RUN_FOLDER
from perennial.contracts.errors import PerennialError
from perennial.contracts.user_code import RunStopped
from perennial.engine.config.distillation import Distillation
from perennial.run_trials.step import run_trials_step
from perennial.studies import katib
from perennial.studies.planning import StudyConfig, draft_plan
from perennial.studies.records import StudyPlan, Trial
from tiny_training import tiny_section

COMPONENT = K8S / "components" / "katib"
RATE = "training.optimizer.learning_rate"


@pytest.fixture
def kubeflow(environment, monkeypatch):
    monkeypatch.setattr(katib, "POLL_SECONDS", 0.05)
    monkeypatch.delenv(RUN_FOLDER)
    found = FakeCluster(environment / "cluster", served=("experiments", "workflows", *JOBS))
    for name, value in found.environment("step-1").items():
        monkeypatch.setenv(name, value)
    found.store.put("pods", step_pod())
    yield found
    found.close()


@pytest.fixture
def make_katib(kubeflow):
    made = []

    def make(**options):
        paths = os.pathsep.join(path for path in sys.path if path)
        made.append(FakeKatib(kubeflow, {"PYTHONPATH": paths}, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def contract(**study):
    document = {
        "goal": "which rate?", "nuisance": {RATE: {"log": [1e-4, 1e-1]}}, "trials": 2,
        "proposed_by": "katib", **study,
    }  # fmt: skip
    return json.dumps(
        {
            "model": {"name": "tiny", "task": "tiny_training:TinyTask", "options": {}},
            "training": tiny_section().model_dump(mode="json"),
            "resources": {"num_processes": 1, "launcher": "local"},
            "study": document,
        }
    )


def run_study(folder, root, text):
    run_trials_step(
        contract=text, worker="1/1", snapshot=str(root / "snapshot"),
        trials=str(folder / "trials"), report=str(folder / "report.html"),
    )  # fmt: skip
    plan = StudyPlan.read(folder / "trials")
    store = open_store(os.environ["PERENNIAL_STORE_URI"])
    keys = [item.key for item in store.list(f"{plan.prefix}/trials/")]
    return [Trial.from_json(store.read(key)) for key in keys]


@pytest.mark.full
def test_katib_runs_the_first_stage_and_the_step_the_rest(environment, root, make_katib, kubeflow):
    running = make_katib()
    trials = run_study(environment, root, contract())
    search = [trial for trial in trials if trial.stage == "explore"]
    assert [trial.source for trial in search] == ["", "katib", "katib"]
    assert all(trial.state == "complete" for trial in search)
    assert all(1e-4 <= trial.values[RATE] <= 1e-1 for trial in search[1:])
    assert [trial.stage for trial in trials[3:]] == ["confirm"] * 6
    printed = [float(re.search(r"^value=(.*)$", each, re.M)[1]) for each in running.outputs]
    assert printed == [trial.value for trial in search[1:]]
    asked = {verb for _, plural, verb in kubeflow.rights if plural == "experiments"}
    (rule,) = yaml.safe_load((COMPONENT / "role.yaml").read_text())["rules"]
    assert {"create", "get"} <= asked <= set(rule["verbs"])


def test_katibs_trials_have_no_teachers():
    settings = StudyConfig.from_json(contract())
    distillation = Distillation(teachers=("@1",))
    training = settings.training.model_copy(update={"distillation": distillation})
    taught = settings.model_copy(update={"training": training})
    with pytest.raises(PerennialError, match="trials that Katib proposes have no teachers"):
        draft_plan(taught, taught.study)


def test_a_study_that_is_stopped_deletes_its_experiment(environment, root, kubeflow):
    def stop_when_it_is_there():
        eventually(lambda: kubeflow.store.all("experiments"), 60.0)
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop_when_it_is_there)
    stopping.start()
    with pytest.raises(RunStopped):
        run_study(environment, root, contract())
    stopping.join()
    assert not kubeflow.store.all("experiments")


@pytest.mark.full
def test_a_trial_that_diverges_is_a_result_and_katib_counts_it_as_failed(
    environment, root, make_katib
):
    running = make_katib()
    trials = run_study(environment, root, contract(nuisance={RATE: {"log": [1e30, 1e36]}}))
    states = {trial.state for trial in trials if trial.source == "katib"}
    assert states == {"infeasible"}
    assert not any(re.search(r"^value=", each, re.M) for each in running.outputs)


def test_an_experiment_that_failed_ends_the_study_with_its_reason(environment, root, make_katib):
    make_katib(ends="Failed")
    with pytest.raises(SystemExit, match=r"the Experiment tiny-\w+ failed") as caught:
        run_study(environment, root, contract())
    assert "max trials reached" in str(caught.value)


def test_without_katib_the_reason_is_named(environment, root, kubeflow, monkeypatch):
    kubeflow.handler.served = set(JOBS)
    with pytest.raises(SystemExit, match="has no Katib"):
        run_study(environment, root, contract())
    monkeypatch.delenv("KFP_POD_NAME")
    with pytest.raises(PerennialError, match="needs a cluster with Katib"):
        run_study(environment, root, contract())
