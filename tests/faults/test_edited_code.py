"""Code that is edited while a run is going: no model is made of two codes."""

import shutil

import pytest

from killing import finish, newest_folder, registration, start, wait_for
from perennial.runs import step_records

pytestmark = [pytest.mark.timeout(900), pytest.mark.full]
TASK = """from perennial.tasks.tabular import TabularClassification


class Scaled(TabularClassification):
    def predict(self, output):
        return {power} * super().predict(output)
"""


@pytest.fixture
def scaled(project):
    """The small stream with a task of the user's own."""
    contract = project / "contract.toml"
    text = contract.read_text()
    contract.write_text(text.replace("perennial.tasks.tabular:TabularClassification", "own:Scaled"))
    (project / "own.py").write_text(TASK.format(power=1.0))
    return project


def test_a_task_that_is_edited_during_a_run_ends_it_and_the_original_continues_it(scaled, tmp_path):
    home, output = tmp_path / "home", tmp_path / "printed.txt"
    process = start(scaled, home, output)
    wait_for(home, "step_started", "select_checkpoint", process)
    original = scaled / "own.py"
    shutil.copy(original, tmp_path / "own.before")
    original.write_text(TASK.format(power=0.5))
    assert process.wait() == 1
    assert "the code changed while the run was going" in output.read_text()
    assert str(original) in output.read_text()
    shutil.copy(tmp_path / "own.before", original)
    interrupted = newest_folder(home)
    finish(scaled, home)
    assert newest_folder(home) == interrupted
    assert registration(home).version == "1"
    ends = {record.step: record.status for record in step_records(interrupted)}
    assert ends["train_model"] == "reused"
