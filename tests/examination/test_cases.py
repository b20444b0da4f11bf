"""The examination's list is sound: every edit applies, every healthy task encodes, scores and learns."""

import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from examination.learning import fitted, learn, mean_loss, split, task_of
from examination.planted import all_bugs, all_cases
from examination.tasks import DATA, healthy_tasks
from perennial.contract import load_contract
from perennial.engine.task import LABEL, WEIGHT, inputs_of

HEALTHY = healthy_tasks()
ROOT = Path(__file__).resolve().parents[2]
MAIN_FAMILIES = {"tables", "images", "text", "retrieval", "forecast"}


def test_the_list_is_as_long_as_it_claims():
    families = [found.task.partition("_")[0] for found in all_bugs()]
    assert len(families) >= 100
    assert len(HEALTHY) >= 60
    assert {name for name in MAIN_FAMILIES if families.count(name) < 15} == set()


def test_every_edit_applies_once_and_leaves_a_module_that_compiles():
    cases = all_cases()
    assert len(cases) == len(HEALTHY) + len(all_bugs())
    for case in cases.values():
        compile(case.source, case.name, "exec")


def test_each_dataset_has_one_name():
    """The first of two would be given to the tasks of both."""
    made = [
        name
        for module in DATA
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")
    ]
    assert len(made) == len(set(made))


def test_a_case_writes_what_a_user_has(tmp_path):
    contract = HEALTHY["tables_iris_names"].write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "contract.toml",
        "data",
        "user_task.py",
    ]
    assert 'task = "user_task:Iris"' in contract.read_text()


def test_every_contract_is_accepted(tmp_path):
    """A contract that is refused before anything is examined would count as a bug caught."""
    contracts = {case.contract: case for case in all_cases().values()}
    for number, case in enumerate(contracts.values()):
        path = replace(case, rows=lambda: pl.DataFrame({"a": [1]})).write(tmp_path / str(number))
        load_contract(path)


def test_the_program_that_examines_finds_the_list(tmp_path):
    """It shares its name with the list's package: neither may hide the other."""
    record = tmp_path / "record.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.examination", "run", record, "--only", "no such case"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not record.exists()


@pytest.mark.filterwarnings("ignore::UserWarning")  # of libraries, at other people's styles
@pytest.mark.parametrize("name", [*HEALTHY][::8])
def test_a_healthy_task_encodes_and_scores(name, tmp_path):
    """One in eight: the others take long to prepare, and are tried by the test below."""
    task_type, columns, rows, contract = task_of(HEALTHY[name], tmp_path)
    train, test = split(rows, contract["data"].get("time"))
    task = fitted(task_type, columns, train)
    batch = task.encode(test.head(task.scored_together * max(1, 64 // task.scored_together)))
    torch.manual_seed(0)
    model = task.build_model()
    assert np.isfinite(mean_loss(task, model, batch))
    with torch.no_grad():
        output = model(**inputs_of(batch))
    is_statistic = task.kind == "statistic"
    predictions = task.statistic(output, batch) if is_statistic else task.predict(output)
    ones = torch.ones(len(batch[LABEL]))
    labels = batch.get(WEIGHT, ones) if is_statistic else batch[LABEL]
    found = task.score(predictions.double().numpy(), labels.double().numpy())
    assert found.keys() <= task.metrics.keys()
    assert found


@pytest.mark.full
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_task_learns(name, tmp_path):
    """By a plain loop: better than at its start, and than with inputs of other rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss = learn(HEALTHY[name], Path(tmp_path))
    assert loss["final"] < loss["before"]
    assert loss["final"] < loss["shuffled"]
