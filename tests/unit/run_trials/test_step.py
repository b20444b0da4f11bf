"""The step `run_trials`: real trainings of a tiny task, several at a time."""

import json
import os
import signal
import threading
import traceback
from functools import partial

import pytest

from perennial.analyze_study.step import analyze_study_step
from perennial.clients.object_store import open_store
from perennial.clients.tracking import open_tracking
from perennial.contracts.data import ModelSection
from perennial.contracts.environment import RUN_FOLDER, Environment
from perennial.contracts.errors import PerennialError
from perennial.contracts.training import TrainingResult
from perennial.contracts.user_code import RunStopped
from perennial.engine.checkpoints.checkpointer import load_checkpoint_model
from perennial.run_trials.step import run_trials_step
from perennial.steps.journal import Journal
from perennial.steps.processes import share_fork_server, start_fork_server
from perennial.studies import judgement
from perennial.studies.planning import StudyConfig
from perennial.studies.records import StudyPlan, Trial
from perennial.train_model.step import train_model_step
from perennial.training_jobs.config import ResourcesSection, TrainModelConfig
from tiny_training import tiny_section

RATE, FAULT, WIDTH = (
    "training.optimizer.learning_rate",
    "model.options.fault",
    "model.options.width",
)
DECAY = "training.averaging.decay"
MODEL = ModelSection(name="tiny", task="tiny_training:TinyTask")
ONE = ResourcesSection(num_processes=1)
RATES = {RATE: {"log": [1e-4, 1e-1]}}


def config_of(resources=ONE, **study):
    document = {"goal": "a learning rate", "nuisance": RATES, "trials": 4, **study}
    return StudyConfig.model_validate_json(
        json.dumps(
            {
                "model": MODEL.model_dump(mode="json"),
                "training": tiny_section().model_dump(mode="json"),
                "resources": resources.model_dump(mode="json"),
                "study": document,
            }
        )
    )


def run_study(environment, root, config, name="first"):
    """Run the step; return the plan and the trials in the store."""
    out = environment / name
    result = run_trials_step(
        contract=config.to_json(), worker="1/1", snapshot=str(root / "snapshot"),
        trials=str(out / "trials"), report=str(out / "report.html"),
    )  # fmt: skip
    plan = StudyPlan.read(out / "trials")
    return plan, stored_trials(plan), result


def stored_trials(plan):
    store = open_store(os.environ["PERENNIAL_STORE_URI"])
    keys = [item.key for item in store.list(f"{plan.prefix}/trials/")]
    return [Trial.from_json(store.read(key)) for key in keys]


def timeless(trials):
    """Return the records without how long they took."""
    return [
        trial.model_copy(
            update={
                "trainings": tuple(
                    each.model_copy(update={"seconds": 0.0, "device_seconds": 0.0})
                    for each in trial.trainings
                )
            }
        )
        for trial in trials
    ]


def logs_of(environment):
    found = (environment / "store" / "training").glob("*/logs/rank-0.log")
    return "\n".join(file.read_text() for file in found)


def test_trials_are_trained_confirmed_and_recorded_with_one_encoding(
    environment, root, monkeypatch
):
    plan, trials, result = run_study(environment, root, config_of(min_improvement=0.01))
    assert [trial.number for trial in trials] == list(range(5 + 6))
    assert trials[0].values == {RATE: 3e-4}
    assert result.metrics["trials"] == 11
    assert "5 trials: 5 complete; best rmse" in result.summary
    text = logs_of(environment)
    assert (text.count("fitting=TinyTask"), text.count("is encoded already")) == (1, 2 * 10)
    assert not list(environment.rglob("*.npy"))
    points = [point.step for point in trials[3].trainings[0].evaluations]
    assert points == [8, 16, 20]
    assert trials[3].value == min(p.metrics["rmse"] for p in trials[3].trainings[0].evaluations)
    require_child_runs(plan, trials)
    events = [event for event, _ in Journal(environment / "home" / "runs" / "run-1").events()]
    progress = [event for event in events if event["kind"] == "progress"]
    assert {event["step"] for event in progress} == {"run_trials"}  # none of the trainings' own
    assert (progress[-1]["done"], progress[-1]["total"]) == (11, 11)
    page = (environment / "first" / "report.html").read_text()
    assert "a learning rate" in page
    assert "Confirmations" in page
    best = min(trials[1:5], key=plan.rank)
    require_deleted_checkpoints(environment, trials, best)
    # An ordinary run with the values of the finalist finds its training.
    monkeypatch.setenv(RUN_FOLDER, "")
    optimizer = tiny_section().optimizer.model_copy(update={"learning_rate": best.values[RATE]})
    settings = TrainModelConfig(
        model=MODEL, training=tiny_section(optimizer=optimizer), resources=ONE
    )
    again = train_model_step(
        contract=settings.to_json(), snapshot=str(root / "snapshot"),
        training=str(environment / "run"), report=str(environment / "run.html"),
    )  # fmt: skip
    assert "is reused" in again.summary
    trained = TrainingResult.read(environment / "run")
    assert trained.fingerprint == best.trainings[0].fingerprint


def require_deleted_checkpoints(environment, trials, finalist):
    """After the analysis, checkpoints are left of baseline, finalist and confirmations alone."""
    trainings = environment / "store" / "training"

    def with_checkpoints():
        return {file.parents[2].name for file in trainings.glob("*/checkpoints/*/COMMITTED")}

    assert len(with_checkpoints()) == len(trials)
    out = environment / "first"
    analyze_study_step(
        contract="{}", study=str(out / "trials"), judgement=str(out / "judgement"),
        report=str(out / "study.html"), metrics=str(out / "metrics"),
    )  # fmt: skip
    kept = [trial for trial in trials if trial.stage == "confirm" or trial.number == 0]
    assert with_checkpoints() == {
        trial.trainings[0].fingerprint[:16] for trial in [*kept, finalist]
    }
    assert len(list(trainings.glob("*/training.json"))) == len(trials), "curves stay"


def test_the_moving_average_of_the_weights_is_searched_and_judged(environment, root, monkeypatch):
    """Whatever the decay, the weights themselves are the same."""
    study = {"nuisance": {DECAY: {"choices": [0.8, 0.9]}}, "sampler": "grid", "trials": 2}
    document = json.loads(config_of(**study).to_json())
    document["training"]["averaging"] = {"decay": 0.1, "warm_up": False}
    document["training"]["optimizer"]["learning_rate"] = 0.5  # too high, so that the average helps
    config = StudyConfig.model_validate_json(json.dumps(document))
    _, trials, _ = run_study(environment, root, config)
    assert len({trial.value for trial in trials[:3]}) == 3
    require_curves_of_values(trials)
    loaded = []

    def load(uri, result, *, averaged):
        loaded.append(averaged)
        return load_checkpoint_model(uri, result, averaged=averaged)

    monkeypatch.setattr(judgement, "load_checkpoint_model", load)
    out = environment / "first"
    analyze_study_step(
        contract="{}", study=str(out / "trials"), judgement=str(out / "judgement"),
        report=str(out / "analysis.html"), metrics=str(out / "metrics"),
    )  # fmt: skip
    averages = [
        trial.value in {point.metrics["averaged_rmse"] for point in trial.trainings[0].evaluations}
        for trial in trials
        if trial.stage == "confirm"
    ]
    assert sum(loaded) == sum(averages) > 0


def require_curves_of_values(trials):
    """The best point of a trial's curve in MLflow is its value."""
    parent = open_tracking(Environment.read(), "tiny")
    client = parent._client
    experiment = client.get_experiment_by_name("tiny").experiment_id
    children = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{parent.run_id}'")
    runs = {run.data.tags["perennial.trial"]: run.info.run_id for run in children}
    for trial in trials[:3]:
        history = client.get_metric_history(runs[str(trial.number)], "validation/rmse")
        best = min(point.value for point in history)
        assert best == pytest.approx(trial.trainings[0].value)


def require_child_runs(plan, trials):
    parent = open_tracking(Environment.read(), "tiny")
    client = parent._client
    assert client.get_run(parent.run_id).data.params["study.goal"] == "a learning rate"
    experiment = client.get_experiment_by_name("tiny").experiment_id
    children = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{parent.run_id}'")
    runs = {run.data.tags["perennial.trial"]: run for run in children}
    assert runs.keys() == {str(trial.number) for trial in trials}
    for trial in trials:
        run = runs[str(trial.number)]
        assert float(run.data.params[RATE]) == trial.values[RATE]
        assert run.data.params["training.global_batch_size"] == "32"
        assert run.data.params["training.seed"] == str(trial.trainings[0].seed)
        assert run.data.metrics["rmse"] == pytest.approx(trial.value)
        assert run.info.status == "FINISHED"
    history = client.get_metric_history(runs["3"].info.run_id, "validation/rmse")
    assert [point.step for point in history] == [8, 16, 20]


def test_what_the_hyperparameters_break_is_infeasible_and_a_kill_is_tried_again(
    environment, root, caplog
):
    config = config_of(
        ResourcesSection(num_processes=1, max_restarts=0),
        scientific={FAULT: {"choices": ["", "nan", "raise", "kill"]}},
        fixed={"model.options.fault_call": 9},
        sampler="grid",
        trials=8,
        nuisance={RATE: {"log": [1e-3, 1e-2], "grid_points": 2}},
    )
    _, trials, _ = run_study(environment, root, config)
    found = {(t.values[FAULT], t.state, t.value is None) for t in trials if t.stage == "explore"}
    assert found == {
        ("", "complete", False), ("nan", "infeasible", True), ("raise", "infeasible", True),
        ("kill", "failed", True),
    }  # fmt: skip
    reasons = {trial.values[FAULT]: trial.reason for trial in trials if trial.number}
    assert "not finite at or before step" in reasons["nan"]
    assert "KeyError" in reasons["raise"]
    assert "a process was killed" in reasons["kill"]
    killed = next(trial for trial in trials if trial.values.get(FAULT) == "kill")
    for each in trials:
        assert each.state == "complete" or [t.value for t in each.trainings] == [None]
        assert each.device_seconds > 0, "what has failed has cost as well"
    assert f"trial={killed.number} is tried again: the training ended" in caplog.text
    assert "trial=0 is tried again" not in caplog.text


@pytest.mark.full
def test_a_pruned_trial_is_stopped_and_recorded_up_to_its_rung(environment, root):
    config = config_of(
        pruning="asha", reduction=2, parallel=1, trials=8,
        nuisance={RATE: {"log": [1e-5, 1e-1]}},
    )  # fmt: skip
    _, trials, _ = run_study(environment, root, config)
    pruned = [trial for trial in trials if trial.state == "pruned"]
    assert pruned
    for trial in pruned:
        (training,) = trial.trainings
        assert [point.step for point in training.evaluations] == [8]
        assert training.losses[-1][0] <= 8
        assert trial.value == training.value == training.evaluations[0].metrics["rmse"]
        assert "stopped at step 8: rmse" in trial.reason
    assert all(trial.state == "complete" for trial in trials if trial.stage == "confirm")


def ignore(number, frame):
    """What SIGTERM does before and after the study: its own handler is another."""


def stop_study(is_over, seconds):
    """Send SIGTERM to this process so many seconds after the study listens to it."""
    while signal.getsignal(signal.SIGTERM) is ignore:
        if is_over.wait(0.02):
            return
    if not is_over.wait(seconds):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_stopped_study_continues_with_the_same_trials(environment, root, monkeypatch, request):
    request.addfinalizer(
        partial(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, ignore))
    )
    config = config_of(pruning="asha", reduction=2)
    monkeypatch.setenv("PERENNIAL_STORE_URI", str(environment / "whole"))
    _, whole, _ = run_study(environment, root, config, "whole")
    monkeypatch.setenv("PERENNIAL_STORE_URI", str(environment / "cut"))
    for number in range(20):
        folder = environment / "home" / "runs" / "run-2"
        folder.mkdir(exist_ok=True)
        monkeypatch.setenv(RUN_FOLDER, str(folder))
        is_over = threading.Event()
        stopper = threading.Thread(target=stop_study, args=(is_over, 0.5 + number))
        stopper.start()
        try:
            _, trials, _ = run_study(environment, root, config, f"cut-{number}")
            break
        except RunStopped:
            continue
        finally:
            is_over.set()
            stopper.join()
    assert number
    assert timeless(trials) == timeless(whole)


def test_a_baseline_that_fails_ends_the_study(environment, root):
    config = config_of(fixed={FAULT: "raise"})
    with pytest.raises(PerennialError, match="the baseline of the study did not complete") as found:
        run_study(environment, root, config)
    assert "KeyError" in found.value.evidence


def test_two_workers_on_one_store_share_the_trials(environment, root, monkeypatch):
    """Two processes with homes of their own, as two pods have."""
    config = config_of(trials=6)
    monkeypatch.delenv(RUN_FOLDER)
    start_fork_server()
    children = []
    for worker in ("1/2", "2/2"):
        child = os.fork()
        if not child:
            os._exit(run_worker(environment, root, config, worker))
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0, 0]
    plans = [StudyPlan.read(environment / worker / "trials") for worker in ("1", "2")]
    assert plans[0] == plans[1]
    trials = stored_trials(plans[0])
    assert [trial.number for trial in trials] == list(range(7 + 6))
    trained = list((environment / "store" / "training").iterdir())
    assert len(trained) == len({trial.trainings[0].fingerprint for trial in trials}) == 13
    assert not list((environment / "store" / plans[0].prefix / "claims").iterdir())


def run_worker(environment, root, config, worker):
    out = environment / worker[0]
    share_fork_server()
    try:
        run_trials_step(
            contract=config.to_json(), worker=worker, snapshot=str(root / "snapshot"),
            trials=str(out / "trials"), report=str(out / "report.html"),
        )  # fmt: skip
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
