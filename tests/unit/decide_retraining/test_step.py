import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from perennial.clients.object_store import open_store
from perennial.contracts.artifact import hand_on
from perennial.contracts.data import DataSection, ModelSection, SplitSection
from perennial.contracts.lineage import Lineage
from perennial.contracts.monitoring import DriftReport, RetrainingDecision
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.triggers import MonitoringConfig, TriggersSection
from perennial.decide_retraining.state import monitoring_record
from perennial.decide_retraining.step import decide_retraining_step
from perennial.registry.champion_records import UnclearChampionError
from perennial.registry.trigger_state import record_judged
from perennial.steps.journal import Journal
from perennial.steps.stored_steps import StoredRun, StoredStep

CONFIG = MonitoringConfig(model=ModelSection(name="demo", task="a:B")).to_json()
LOCAL_RUN = """
import sys
from kfp import dsl, local
from perennial.decide_retraining.component import decide_retraining

root, contract = sys.argv[1:]
local.init(local.SubprocessRunner(use_venv=False), pipeline_root=root + "/outputs")

@dsl.component
def train(trigger: str):
    print("TRAINING BECAUSE", trigger)

@dsl.pipeline
def monitoring(contract: str):
    drift = dsl.importer(artifact_uri=root + "/handed-on", artifact_class=dsl.Artifact)
    made = decide_retraining(contract=contract, drift=drift.output)
    with dsl.If(made.outputs["Output"] == True):
        train(trigger=made.outputs["trigger"])

monitoring(contract=contract)
"""


@pytest.fixture
def inputs(tmp_path, monkeypatch, report):
    monkeypatch.setenv("PERENNIAL_STORE_URI", str(tmp_path / "store"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("PERENNIAL_RUN_ID", "run-1")
    Snapshot(
        data=DataSection(uri="d", label="y", time="t"), split=SplitSection(), files=(),
        columns={}, rows=10_000, split_rows={}, time_max=datetime(2024, 6, 6),
    ).write(tmp_path / "snapshot")  # fmt: skip
    report(drifted=True).write(tmp_path / "drift")
    hand_on(tmp_path / "handed-on", report(drifted=True), tmp_path / "snapshot")
    return tmp_path


def decide_once(root):
    return decide_retraining_step(
        contract=CONFIG,
        snapshot=str(root / "snapshot"),
        drift=str(root / "drift"),
        decision=str(root / "decision"),
        report=str(root / "report.html"),
        trigger=str(root / "trigger.json"),
    )


def test_what_was_seen_and_decided_is_kept_for_the_exporter(inputs):
    made = decide_once(inputs)
    look = monitoring_record(open_store(str(inputs / "store")), "demo").read()
    assert look.run_id == "run-1"
    assert (look.champion_version, look.drifted, look.decayed) == ("3", True, False)
    assert look.data_time == datetime(2024, 6, 6)
    assert look.largest_z_score == pytest.approx(
        max(w.max_z_score for w in DriftReport.read(inputs / "drift").windows)
    )
    assert (look.retrain, look.trigger) == (made.parameters["retrain"], "drift")
    assert datetime.now(UTC) - look.at < timedelta(minutes=5)


def test_the_decision_its_evidence_and_its_page(inputs):
    result = decide_once(inputs)
    made = RetrainingDecision.read(inputs / "decision")
    assert result.parameters["retrain"] is made.retrain is True
    assert result.summary == made.summary
    trigger = json.loads((inputs / "trigger.json").read_text())
    assert trigger["trigger"] == "drift"
    assert trigger["evidence"]["champion_version"] == "3"
    assert Lineage(
        contract_digest="", snapshot_digest="", code_digest="", packages={}, seed=0, run_id="",
        trigger=trigger,
    ).trigger == trigger  # fmt: skip
    page = (inputs / "report.html").read_text()
    assert "dest moved by 0.200" in page
    assert "cooldown" in page


def test_the_same_run_decides_the_same_and_the_next_is_held_back(inputs, monkeypatch):
    first = decide_once(inputs), (inputs / "trigger.json").read_bytes()
    assert (decide_once(inputs), (inputs / "trigger.json").read_bytes()) == first
    monkeypatch.setenv("PERENNIAL_RUN_ID", "run-2")
    second = decide_once(inputs)
    assert second.parameters["retrain"] is False
    assert "already trained on by run run-1" in second.summary
    assert "Past retrainings" in (inputs / "report.html").read_text()


def run_locally(root):
    script = root / "local_run.py"
    script.write_text(LOCAL_RUN)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(root), CONFIG],
        capture_output=True, text=True, check=False, cwd=root,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "TRAINING BECAUSE" in line]


def test_under_the_local_runner_a_training_follows_the_decision_and_only_it(
    inputs, report, monkeypatch
):
    (training,) = run_locally(inputs)
    assert '"trigger":"drift"' in training
    report().write(inputs / "drift")
    monkeypatch.setenv("PERENNIAL_RUN_ID", "run-2")
    assert run_locally(inputs) == []


def test_a_report_without_champion_is_not_believed_while_a_promotion_is_on_record(inputs, report):
    """Else a champion whose alias was deleted in MLflow would be replaced by a first model."""
    report(champion="", drifted=False).write(inputs / "drift")
    assert decide_once(inputs).parameters["retrain"] is True
    open_store(str(inputs / "store")).write("registry/demo.json", b"{")
    with pytest.raises(UnclearChampionError, match="but a promotion is recorded"):
        decide_once(inputs)


def store_ends(root, run_id, **ends):
    stored = StoredRun(str(root / "store"), run_id)
    for began, (step, status) in enumerate(ends.items()):
        stored.write(StoredStep(step=step, status=status, began=began, ended=began + 1))


@pytest.mark.parametrize(
    ("ends", "again"),
    [
        ({"train_model": "failed"}, True),
        ({"train_model": "finished", "evaluate_model": "failed"}, True),
        ({"train_model": "cancelled"}, False),
        ({"train_model": "running"}, False),
        ({"evaluate_model": "finished", "register_model": "failed"}, False),
        ({}, False),
    ],
)
def test_a_retraining_that_failed_does_not_block_the_next_one_on_the_same_data(
    inputs, monkeypatch, ends, again
):
    assert decide_once(inputs).parameters["retrain"]
    store_ends(inputs, "run-1", decide_retraining="finished", **ends)
    monkeypatch.setenv("PERENNIAL_RUN_ID", "run-2")
    found = decide_once(inputs)
    assert found.parameters["retrain"] == again
    assert ("already trained on by run run-1" in found.summary) != again


@pytest.mark.parametrize(
    ("events", "again"),
    [
        ([("step_failed", "check_skeleton")], True),
        ([("step_finished", "evaluate_model"), ("step_failed", "register_model")], False),
        ([("step_stopped", "train_model")], False),
        ([("step_started", "train_model")], False),
        ([("step_failed", "train_model"), ("run", ""), ("step_reused", "evaluate_model")], False),
    ],
)
def test_a_retraining_that_failed_on_this_machine_does_not_block_the_next_one(
    inputs, monkeypatch, events, again
):
    for number in (1, 2):
        folder = inputs / "home" / "runs" / f"run-{number}"
        folder.mkdir(parents=True)
        monkeypatch.setenv("PERENNIAL_RUN_ID", folder.name)
        monkeypatch.setenv("PERENNIAL_RUN_FOLDER", str(folder))
        found = decide_once(inputs)
        for kind, step in events:
            Journal(folder).append(kind, **({"step": step} if step else {}))
    assert found.parameters["retrain"] == again
    assert ("already trained on by run run-1" in found.summary) != again


def test_a_failed_retraining_is_found_behind_a_training_by_hand(inputs, monkeypatch):
    assert decide_once(inputs).parameters["retrain"]
    store_ends(inputs, "run-1", train_model="failed")
    taken = Snapshot.read(inputs / "snapshot").model_copy(
        update={"rows": 1, "time_max": datetime(2024, 1, 1)}
    )
    store = open_store(str(inputs / "store"))
    record_judged(store, "demo", "by-hand", taken, datetime.now(UTC))
    monkeypatch.setenv("PERENNIAL_RUN_ID", "run-2")
    assert decide_once(inputs).parameters["retrain"]
    assert "not started by monitoring" in (inputs / "report.html").read_text()


def test_failed_retrainings_use_up_the_budget(inputs, monkeypatch):
    """A training that can only fail is not repeated without end."""
    tried = []
    for number in range(1, 9):
        monkeypatch.setenv("PERENNIAL_RUN_ID", f"run-{number}")
        tried.append(bool(decide_once(inputs).parameters["retrain"]))
        store_ends(inputs, f"run-{number}", train_model="failed")
    most = TriggersSection().max_retrainings
    assert tried == [True] * most + [False] * (8 - most)


def test_the_records_of_the_last_run_are_read_once(inputs, monkeypatch):
    """The page shows what the decision was made on, also if that run ends meanwhile."""
    decide_once(inputs)
    read, steps = [], StoredRun.steps
    monkeypatch.setattr(StoredRun, "steps", lambda run: read.append(run) or steps(run))
    monkeypatch.setenv("PERENNIAL_RUN_ID", "run-2")
    decide_once(inputs)
    assert len(read) == 1
