"""A champion is scored by the code that it carries and serves by, once the task was edited.

Weights that get other inputs than they were trained on predict badly, so that any challenger of the
edited code would be promoted.
"""

import importlib
import sys
from datetime import UTC, datetime

import numpy as np
import pytest

from perennial.contracts.data import Split
from perennial.contracts.training import Challenger
from perennial.data.dataset import Dataset
from perennial.engine.evaluation.scoring import score_split
from perennial.gate.champion import read_champion
from perennial.gate.champion_code import ChampionCode
from perennial.gate.comparison import Contender, explain_incomparable
from perennial.registry.version_files import ModelVersion
from small_models import NOISY, linear_model, stream, write_challenger, write_snapshot

TASK = """
from edited_helper import SCALE
from perennial.tasks.tabular import TabularClassification


class Edited(TabularClassification):
    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, "numbers": batch["numbers"] * SCALE}
"""
MEASURED = """
from edited_helper import SCALE
from perennial.tasks.tabular import TabularClassification


class Edited(TabularClassification):
    kind = property(lambda self: "statistic", lambda self, value: None)
    metrics = {"mean_loss": "minimize"}
    prediction_names = ("measured",)

    def score(self, predictions, labels):
        return {"mean_loss": float(predictions.mean())}

    def losses(self, output, batch):
        return SCALE * super().losses(output, batch)
"""


class Project:
    """A user's folder, whose task trained version 3 and then changes."""

    def __init__(self, folder):
        self.code, self.version = folder / "project", folder / "champion"
        self.code.mkdir()
        self.snapshot = write_snapshot(folder / "data", stream(days=31))

    def write(self, name, text):
        (self.code / name).write_text(text)
        for module in ("edited_task", "edited_helper"):
            sys.modules.pop(module, None)
        importlib.invalidate_caches()

    def train(self, task=TASK):
        self.write("edited_helper.py", "SCALE = 1.0\n")
        self.write("edited_task.py", task)
        write_challenger(self.version, self.snapshot, NOISY, path="edited_task:Edited")
        self.snapshot.write(self.version)
        self.trained = self.read().contender.scored

    def read(self, path="edited_task:Edited", processes=None):
        dataset = Dataset(self.snapshot)
        task, model = linear_model(self.snapshot, NOISY, path)
        self.challenger = Contender(task, score_split(task, model, dataset, Split.TEST))
        made = ModelVersion("clicks", "3", {}, "", str(self.version), datetime.now(UTC))
        return read_champion(self.version, made, dataset, self.challenger, processes=processes)


@pytest.fixture
def project(tmp_path, monkeypatch):
    made = Project(tmp_path)
    monkeypatch.syspath_prepend(str(made.code))
    yield made
    for module in ("edited_task", "edited_helper"):
        sys.modules.pop(module, None)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("edited", ["edited_helper.py", "edited_task.py"])
def test_inputs_that_were_edited_do_not_reach_an_older_model(project, edited, processes):
    project.train()
    if edited == "edited_helper.py":
        project.write(edited, "SCALE = -0.3\n")
    else:
        project.write(edited, TASK.replace("* SCALE", "* -0.3"))
    found = project.read(processes=processes)
    np.testing.assert_array_equal(found.contender.scored.predictions, project.trained.predictions)
    assert not np.allclose(project.challenger.scored.predictions, project.trained.predictions)
    assert found.notes == (
        f"version 3 is scored by the code that it carries: {edited} changed since it was registered",
    )
    # The project's own modules are those of today again.
    again = importlib.import_module("edited_task")
    assert again.__file__ == str(project.code / "edited_task.py")


def test_an_edit_that_changes_no_prediction_leaves_both_models_to_one_code(project):
    project.train()
    project.write("edited_task.py", TASK.replace("* SCALE", "* (SCALE * 1.0)"))
    found = project.read()
    assert not found.contender.by_carried_code
    assert found.notes[0].startswith("version 3 predicts the same by today's code and its own")
    assert explain_incomparable(project.challenger, found.contender, "loss") == ""


def test_the_code_of_a_model_in_shards_is_named_too(project):
    project.train()
    project.write("edited_helper.py", "SCALE = -0.3\n")
    found = project.read()
    code = ChampionCode.of(project.version, Challenger.read(project.version))
    assert code.verify(found.contender, "3", is_whole=False) == found.notes


def test_losses_of_two_codes_are_not_compared(project):
    project.train()
    project.write("edited_helper.py", "SCALE = -0.3\n")
    found = project.read().contender
    why = explain_incomparable(project.challenger, found, "loss")
    assert why.startswith("loss is not comparable: the task's code changed")
    assert explain_incomparable(project.challenger, found, "roc_auc") == ""


def test_a_task_that_was_renamed_does_not_end_the_comparison(project):
    project.train()
    (project.code / "edited_task.py").unlink()
    project.write("moved_task.py", TASK)
    found = project.read("moved_task:Edited")
    assert found.failure == ""
    np.testing.assert_array_equal(found.contender.scored.predictions, project.trained.predictions)


def test_code_that_raises_on_an_older_model_does_not_free_its_place(project):
    """Its state lacks what the edited code reads."""
    project.train()
    broken = TASK + "\n    def load_state(self, state):\n        self.fitted = state['new']\n"
    project.write("edited_task.py", broken + "    def state(self):\n        return {'new': 1}\n")
    found = project.read()
    assert found.contender is not None
    assert found.contender.by_carried_code


def test_rows_that_the_users_code_measures_otherwise_are_not_compared(project):
    project.train(MEASURED)
    project.write("edited_helper.py", "SCALE = 0.25\n")
    found = project.read()
    assert found.contender is None
    assert "does not measure its rows as its own does" in found.failure
