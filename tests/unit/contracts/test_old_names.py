"""Perennial's modules were `components.…`: what names them so still works, and users' own packages win."""

import subprocess
import sys

import polars as pl
import pytest

from perennial.contracts.data import ModelSection
from perennial.contracts.old_names import current_task

TASK = """
from components.columns import COLUMNS
from pipelines import NAME
from {engine}.engine.task import Task
from {engine}.tasks.tabular import TabularClassification


class Clicks(TabularClassification):
    columns_of_ours, name_of_ours = COLUMNS, NAME


assert issubclass(Clicks, Task)
"""
CONTRACT = """
[model]
name = "clicks"
task = "{task}"

[data]
uri = "data"
label = "clicked"
ids = ["visit"]
"""
# As a Kubeflow project has them, beside its contract.
FILES = {
    "components/__init__.py": "",
    "components/columns.py": "COLUMNS = ['age']",
    "components/tasks/__init__.py": "",
    "pipelines/__init__.py": "NAME = 'ours'",
}


@pytest.fixture
def project(tmp_path):
    def write(files, task="clicks:Clicks"):
        for name, text in {**files, "contract.toml": CONTRACT.format(task=task)}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        (tmp_path / "data").mkdir()
        visits = pl.int_range(1000, eager=True)
        rows = pl.DataFrame({"visit": visits, "age": visits % 50, "clicked": visits % 2})
        rows.write_parquet(tmp_path / "data" / "part-0.parquet")
        return subprocess.run(
            [sys.executable, "-m", "perennial.cli", "check", "contract.toml"],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return write


@pytest.mark.parametrize("engine", ["perennial", "components"], ids=["new names", "old names"])
def test_a_project_with_packages_of_the_same_names_is_imported_as_its_own(project, engine):
    done = project(FILES | {"clicks.py": TASK.format(engine=engine)})
    assert done.returncode == 0, done.stderr
    assert "is valid" in done.stdout
    note = "components.engine.task is now perennial.engine.task: change the import"
    assert (note in done.stderr) == (engine == "components")


def test_a_task_of_the_users_own_package_is_not_taken_for_ours(project):
    own = {"components/tasks/tabular.py": TASK.format(engine="perennial")}
    done = project(FILES | own, task="components.tasks.tabular:Clicks")
    assert done.returncode == 0, done.stderr
    assert "components.tasks.tabular:Clicks" in done.stdout


def test_a_reference_task_is_known_by_its_old_name():
    old = "components.tasks.tabular:TabularClassification"
    assert ModelSection(name="clicks", task=old).task == current_task(old)
    assert current_task(old) == "perennial.tasks.tabular:TabularClassification"
    assert current_task("components.tasks.mine:Mine") == "components.tasks.mine:Mine"


def test_old_and_new_name_are_one_module_and_what_never_was_is_not_found():
    program = """
from perennial.contracts.old_names import find_old_names
find_old_names()
import components.engine.task, perennial.engine.task
assert components.engine.task.Task is perennial.engine.task.Task
assert perennial.engine.task.__spec__.name == "perennial.engine.task"
for name in ("components.clients", "components.engine.nothing", "components.mine"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    raise AssertionError(name)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
