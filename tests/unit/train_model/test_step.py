import json
import os
import shutil
import sys

import pytest
from pydantic import ValidationError

from perennial.clients.tracking import open_mlflow, open_tracking
from perennial.contracts.data import ModelSection
from perennial.contracts.environment import CACHE, LEASE, RUN_FOLDER, Environment
from perennial.contracts.errors import PerennialError, TrainingFailedError
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import TrainingResult
from perennial.engine.config.training import Loading, TrainingSection
from perennial.engine.job import training_contract, training_fingerprint
from perennial.steps.journal import Journal
from perennial.steps.lease import RunLease
from perennial.train_model import step
from perennial.train_model.step import train_model_step
from perennial.training_jobs.config import ResourcesSection, TrainModelConfig
from perennial.training_jobs.launcher import LocalLauncher, worker_settings
from tiny_training import TinyOptions, tiny_job, tiny_section

MODEL = ModelSection(name="tiny", task="tiny_training:TinyTask")


@pytest.fixture
def environment(tmp_path, monkeypatch):
    monkeypatch.setenv("PERENNIAL_STORE_URI", str(tmp_path / "store"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("PERENNIAL_RUN_ID", "run-1")
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path / "run"))
    monkeypatch.delenv(LEASE, raising=False)
    (tmp_path / "run").mkdir()
    return tmp_path


def run_step(folder, name, config, root):
    out = folder / name
    return train_model_step(
        contract=config.to_json(), snapshot=str(root / "snapshot"), training=str(out / "training"),
        report=str(out / "report.html"),
    )  # fmt: skip


def test_trains_reports_records_and_is_reused_by_an_equal_training(environment, root, monkeypatch):
    config = TrainModelConfig(model=MODEL, training=tiny_section(), resources=ResourcesSection())
    result = run_step(environment, "first", config, root)
    training = TrainingResult.read(environment / "first" / "training")
    assert (training.steps, training.world_size, training.strategy) == (20, 2, "fsdp")
    assert [record.step for record in training.checkpoints] == [8, 16, 20]
    assert result.metrics["validation_rmse"] == training.evaluations[-1].metrics["rmse"]
    assert "20 steps on 2 processes (fsdp)" in result.summary
    page = (environment / "first" / "report.html").read_text()
    assert "gradient norm" in page
    assert "<svg" in page
    assert not list((environment / "store").rglob("*.npy"))
    events = [event for event, _ in Journal(environment / "run").events()]
    progress = [event for event in events if event["kind"] == "progress"]
    assert progress[-1]["done"] == progress[-1]["total"] == 20
    assert {"loss", "examples_per_second", "eta_seconds", "gradient_norm"} <= progress[-1].keys()
    tracking = open_tracking(Environment.read(), "tiny")
    history = tracking._client.get_metric_history(tracking.run_id, "validation/rmse")
    assert [point.step for point in history] == [8, 16, 20]
    run = tracking._client.get_run(tracking.run_id)
    assert run.data.params["training.steps"] == "20"
    assert run.data.params["model.task"] == MODEL.task
    assert float(run.data.metrics["system/system_memory_usage_percentage"]) > 0
    assert {each.kind for each in training.signals} == {"clipping"}
    assert run.data.tags["perennial.signals"] == "clipping"
    assert "contract.json" in {
        item.path for item in tracking._client.list_artifacts(run.info.run_id)
    }
    (data,) = run.inputs.dataset_inputs
    assert json.loads(data.dataset.profile)["rows"] > 0
    monkeypatch.setenv("PERENNIAL_RUN_ID", "run-2")
    monkeypatch.setenv(RUN_FOLDER, "")
    (left_by_a_killed_run,) = (environment / "store" / "training").iterdir()
    (left_by_a_killed_run / ".scratch" / "train").mkdir(parents=True)
    again = run_step(environment, "second", config, root)
    assert "is reused" in again.summary
    assert not (left_by_a_killed_run / ".scratch").exists()
    assert TrainingResult.read(environment / "second" / "training") == training


def test_row_groups_are_indexed_before_the_training_waits_for_them(environment, root, monkeypatch):
    def indexed(*_):
        raise PerennialError(f"{len(list((environment / 'store').glob('row-groups/*/*')))} indexes")

    monkeypatch.setattr(step, "open_launcher", indexed)
    training = tiny_section(loading=Loading(mode="streaming"))
    config = TrainModelConfig(model=MODEL, training=training, resources=ResourcesSection())
    with pytest.raises(PerennialError, match=f"^{len(Snapshot.read(root / 'snapshot').files)} "):
        run_step(environment, "first", config, root)


def test_a_training_that_fails_is_failed_on_record_until_it_is_tried_again(environment, root):
    broken = {
        "task": "faulty_training:FaultyTask",
        "options": {"trouble": "bad loss", "trouble_rank": -1},
    }
    one = ResourcesSection(num_processes=1, max_restarts=0)
    config = TrainModelConfig(
        model=ModelSection(name="tiny", **broken), training=tiny_section(), resources=one
    )
    with pytest.raises(TrainingFailedError):
        run_step(environment, "first", config, root)
    client = open_mlflow(Environment.read())
    experiment = client.get_experiment_by_name("tiny").experiment_id
    (run,) = client.search_runs([experiment])
    assert run.info.status == "FAILED"
    open_tracking(Environment.read(), "tiny")
    assert client.get_run(run.info.run_id).info.status == "RUNNING"


def test_checkpoints_go_to_an_s3_store_and_are_reused_from_there(
    environment, root, bucket, monkeypatch
):
    monkeypatch.setenv("PERENNIAL_STORE_URI", f"{bucket}/perennial")
    monkeypatch.setenv(CACHE, str(environment / "cache"))
    monkeypatch.setenv(RUN_FOLDER, "")
    one = ResourcesSection(num_processes=1)
    config = TrainModelConfig(model=MODEL, training=tiny_section(), resources=one)
    run_step(environment, "first", config, root)
    training = TrainingResult.read(environment / "first" / "training")
    place = f"{bucket}/perennial/training/{training.fingerprint[:16]}/checkpoints"
    assert [record.uri for record in training.checkpoints] == [
        f"{place}/step-{step:08}" for step in (8, 16, 20)
    ]
    assert not (environment / "store").exists()
    assert "is reused" in run_step(environment, "second", config, root).summary
    # On another machine nothing is trained again either.
    shutil.rmtree(environment / "cache")
    assert "is reused" in run_step(environment, "third", config, root).summary
    assert TrainingResult.read(environment / "third" / "training") == training


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"training": {"strategy": "single"}}, "num_processes = 2"),
        ({"resources": {"num_processes": 1025}}, "global_batch_size = 1024 is less than"),
        (
            {
                "training": {"global_batch_size": 3, "parallelism": {"tensor": 2}},
                "resources": {"num_processes": 8},
            },
            "is less than the 4 groups",
        ),
        ({"training": {"steps": 0}}, "steps"),
        ({"resources": {"cluster": {"min_machines": 1}}}, "is not less than cluster.machines = 1"),
        (
            {"resources": {"cluster": {"budgets": {"smaller_after_minutes": 1.0}}}},
            "has no effect without cluster.min_machines",
        ),
        (
            {
                "training": {"parallelism": {"tensor": 4}},
                "resources": {
                    "num_processes": 8,
                    "cluster": {"machines": 4, "min_machines": 1},
                },
            },
            "allows attempts of 2 processes, which are not a multiple of the 4",
        ),
    ],
)
def test_sections_that_do_not_fit_are_refused(config, message):
    text = json.dumps({"model": MODEL.model_dump(mode="json"), **config})
    with pytest.raises(ValidationError, match=message):
        TrainModelConfig.from_json(text)


def test_everything_that_determines_the_weights_is_in_the_fingerprint(root):
    snapshot = Snapshot.read(root / "snapshot")
    other = snapshot.model_copy(update={"rows": snapshot.rows + 1})
    options = TinyOptions(dropout=0.5).model_dump(mode="json")
    variants = [
        (snapshot, MODEL, tiny_section(), "c"),
        (other, MODEL, tiny_section(), "c"),
        (snapshot, MODEL.model_copy(update={"task": "a:B"}), tiny_section(), "c"),
        (snapshot, MODEL.model_copy(update={"options": options}), tiny_section(), "c"),
        (snapshot, MODEL, tiny_section(seed=2), "c"),
        (snapshot, MODEL, tiny_section(steps=21), "c"),
        (snapshot, MODEL, tiny_section(extended_from=(10,)), "c"),
        (snapshot, MODEL, tiny_section(checkpoints={"keep_best": 2}), "c"),
        (snapshot, MODEL, tiny_section(), "d"),
    ]
    contracts = [training_contract(*variant) for variant in variants]
    prints = [training_fingerprint(contract) for contract in contracts]
    assert len(set(prints)) == len(prints)
    renamed = MODEL.model_copy(update={"name": "other"})
    assert training_contract(snapshot, renamed, tiny_section(), "c") == contracts[0]


@pytest.mark.parametrize(
    "layout",
    [
        {"strategy": "ddp"},
        {"micro_batch_size": 7},
        {"strategy": "fsdp", "parallelism": {"tensor": 2}},
        {"memory": {"activation_checkpointing": "full"}},
        {"loading": {"workers": 3}},
        {"checkpoints": {"asynchronous": False}},
        {"watchdog": {"hang_factor": 7.0}},
        {"stragglers": {"every_steps": None}},
        {"peak_tflops": 3.0},
    ],
    ids=str,
)
def test_the_division_of_the_work_is_not_in_the_fingerprint(root, layout):
    snapshot, section = Snapshot.read(root / "snapshot"), tiny_section()
    settings = section.model_dump(mode="json") | layout
    divided = TrainingSection.model_validate_json(json.dumps(settings))
    assert divided != section
    assert training_contract(snapshot, MODEL, divided, "c") == training_contract(
        snapshot, MODEL, section, "c"
    )


def test_workers_get_an_environment_of_their_own(tmp_path):
    lease = RunLease(tmp_path)
    found = lease.variables({"_KFP_RUNTIME": "true", "KEPT": "1"}) | worker_settings(3)
    assert "_KFP_RUNTIME" not in found
    assert found["KEPT"] == "1"
    assert found["OMP_NUM_THREADS"] == found["POLARS_MAX_THREADS"] == "3"
    assert found["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert found[LEASE] == lease.address
    assert set(filter(None, sys.path)) == set(found["PYTHONPATH"].split(os.pathsep))


def test_a_run_that_is_refused_leaves_the_running_one_alone(root, tmp_path):
    job = tiny_job(root)
    job.scratch.mkdir(parents=True)
    job.errors.mkdir(parents=True)
    running = RunLease(job.root)
    running.acquire()
    with pytest.raises(PerennialError, match="another run is active"):
        LocalLauncher(1).start(job)
    assert job.scratch.exists()
    assert job.errors.exists()
    running.release()
