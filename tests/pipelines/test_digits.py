"""The digits example, from its script to a champion and to the alarm about blurred pictures."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from perennial.contract import load_contract
from perennial.contracts.gate import Verdict
from perennial.contracts.monitoring import DriftReport, RetrainingDecision
from perennial.contracts.validation import ValidationReport
from perennial.runs import FLOW, Home, step_records

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "digits"

# A network, a set and a budget that only show that every step takes pictures.
SMALL = {
    "steps = 150": "steps = 60",
    "evaluate_every_steps = 15": "evaluate_every_steps = 30",
    "global_batch_size = 128": "global_batch_size = 64",
    "micro_batch_size = 64": "micro_batch_size = 32",
    "required = { accuracy = 0.9 }": "min_test_rows = 50\nresamples = 200",
    "min_labelled_rows = 40": "drift = false\nmin_labelled_rows = 20",
    "[data]": "[model.options.resnet]\ndepths = [1, 1]\nwidths = [8, 16]\n\n[data]\nblock_days = 14",
}
SMALL_SECTIONS = """
[expectations]
min_rows = 200
min_class_rows = 1

[skeleton]
sample_rows = 128
training_steps = 60
overfit_rows = 16
learning_rates = [1e-2]
"""


@pytest.fixture(scope="module")
def prepare():
    spec = importlib.util.spec_from_file_location("prepare_digits", EXAMPLE / "prepare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def perennial(project: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "perennial.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PERENNIAL_HOME": str(project / "home")},
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def newest(project: Path) -> Path:
    home = Home(project / "home")
    return home.folder(home.runs()[-1].run_id)


def output(folder: Path, step: str, name: str) -> Path:
    (found,) = (folder / "steps").glob(f"{step}-*/{name}")
    return found


def arrive(project: Path, months: range) -> None:
    for month in months:
        name = f"month=2024-{month:02}"
        shutil.copytree(project / "later" / name, project / "data" / name)


def test_every_month_is_written_once_and_the_same_way(prepare, tmp_path):
    first = prepare.write_partitions(tmp_path / "a", rows=80)
    again = prepare.write_partitions(tmp_path / "b", rows=80)
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    assert len(first) == 8
    assert prepare.write_partitions(tmp_path / "a", rows=80) == []
    rows = pl.concat([pl.read_parquet(path) for path in first])
    assert rows["picture_id"].n_unique() == 80
    assert rows["arrived_at"].is_sorted()


@pytest.mark.parametrize("drift", ["rotate", "blur"])
def test_drift_changes_the_last_two_months_alone(prepare, drift):
    plain, drifted = prepare.build_rows("none", 80), prepare.build_rows(drift, 80)
    changed = plain["picture"] != drifted["picture"]
    assert (changed == (plain["arrived_at"].dt.month() >= 7)).all()
    assert plain.drop("picture").equals(drifted.drop("picture"))


def test_the_example_is_short_and_its_contract_holds():
    text = (EXAMPLE / "contract.toml").read_text()
    assert len(text.splitlines()) <= 28
    assert load_contract(EXAMPLE / "contract.toml").gate.required == {"accuracy": 0.9}


@pytest.mark.full
@pytest.mark.timeout(600)
def test_pictures_go_through_every_step_and_blurred_ones_are_noticed(prepare, tmp_path):
    text = (EXAMPLE / "contract.toml").read_text()
    for ours, small in SMALL.items():
        assert ours in text
        text = text.replace(ours, small)
    contract = tmp_path / "contract.toml"
    contract.write_text(text + SMALL_SECTIONS)
    prepare.write_partitions(tmp_path / "later", drift="blur", rows=600)

    arrive(tmp_path, range(1, 7))
    perennial(tmp_path, "run", str(contract))
    folder = newest(tmp_path)
    assert [record.step for record in step_records(folder)] == list(FLOW["continuous_training"])
    facts = ValidationReport.read(output(folder, "validate_data", "validation")).facts
    assert facts["high:picture.width"] == 8.0
    assert facts["unreadable_share:picture"] == 0.0
    assert "Images as the model receives them" in (folder / "report.html").read_text()
    verdict = Verdict.read(output(folder, "evaluate_model", "verdict"))
    assert verdict.promote, verdict.summary

    arrive(tmp_path, range(7, 9))
    perennial(tmp_path, "monitor", str(contract))
    folder = newest(tmp_path)
    drift = DriftReport.read(output(folder, "detect_drift", "drift"))
    assert drift.drifted
    alarmed = {column.column for column in drift.windows[-1].columns if column.alarmed}
    assert "picture.edges_across" in alarmed
    decision = RetrainingDecision.read(output(folder, "decide_retraining", "decision"))
    assert not decision.retrain or "drift" not in json.dumps(decision.reasons)


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("drift", ["none", "rotate"])
def test_the_whole_example_reaches_its_accuracy_and_finds_drift_that_is_there(
    prepare, tmp_path, drift
):
    shutil.copy(EXAMPLE / "contract.toml", tmp_path)
    prepare.write_partitions(tmp_path / "later", drift=drift)
    arrive(tmp_path, range(1, 7))
    perennial(tmp_path, "run", str(tmp_path / "contract.toml"))
    verdict = Verdict.read(output(newest(tmp_path), "evaluate_model", "verdict"))
    accuracy = next(each for each in verdict.comparisons if each.metric == "accuracy")
    assert verdict.promote
    assert accuracy.challenger >= 0.95
    arrive(tmp_path, range(7, 9))
    perennial(tmp_path, "monitor", str(tmp_path / "contract.toml"))
    report = DriftReport.read(output(newest(tmp_path), "detect_drift", "drift"))
    assert report.drifted == (drift != "none")
