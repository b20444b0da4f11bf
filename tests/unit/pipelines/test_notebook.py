"""Python and notebooks: what is loaded is shown inline, and importing a name is cheap."""

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from perennial import api
from perennial.api import PerennialError, Task, load, sanity


@pytest.fixture
def loaded(project):
    return load(project / "contract.toml")


def test_a_project_its_task_and_its_batch_are_shown(loaded):
    assert isinstance(loaded.task, Task)
    shown = loaded._repr_html_()
    assert "clicks" in shown
    assert "noise, place, price" in shown
    assert "<th>kind</th><td>binary</td>" in loaded.task._repr_html_()
    batch = loaded.batch(3)
    assert batch["numbers"].shape == (3, 2)
    page = batch._repr_html_()
    assert "<td>numbers</td><td>[3, 2]</td><td>float32</td>" in page
    assert page.count("<li>") == 3


def test_a_batch_without_categories_is_shown(project):
    contract = project / "contract.toml"
    text = contract.read_text()
    contract.write_text(text.replace("[data]", '[data]\nfeatures = ["price"]'))
    page = load(contract).batch(3)._repr_html_()
    assert "<td>categories</td><td>[3, 0]</td><td>int64</td><td></td>" in page


def scaled(project, factor, module):
    """Give a project a task of its own, in a module and a package beside the contract."""
    file = project / f"{module.replace('.', '/')}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"FACTOR = {factor}")
    (project / "scaling.py").write_text(
        f"from {module} import FACTOR\nfrom perennial.tasks.tabular import TabularClassification\n"
        "class Scaled(TabularClassification):\n    def encode(self, rows):\n"
        "        batch = super().encode(rows)\n"
        "        return {**batch, 'numbers': batch['numbers'] * 0 + FACTOR}"
    )
    contract = project / "contract.toml"
    task = "perennial.tasks.tabular:TabularClassification"
    contract.write_text(contract.read_text().replace(task, "scaling:Scaled"))
    return contract


@pytest.mark.parametrize("module", ["scales", "own.scales", "deep.parts.scales"])
def test_an_edited_task_and_one_of_another_folder_are_imported_again(project, tmp_path, module):
    other = tmp_path / "other"
    shutil.copytree(project, other)
    first, second = scaled(project, 2, module), scaled(other, 33, module)
    kept = load(first)
    assert kept.batch(1)["numbers"].unique().item() == 2
    assert type(load(first).task) is type(kept.task)  # as long as nothing has changed
    assert load(second).batch(1)["numbers"].unique().item() == 33
    assert load(first).batch(1)["numbers"].unique().item() == 2
    scaled(project, 444, module)
    assert load(first).batch(1)["numbers"].unique().item() == 444


def test_what_is_shown_cannot_run_in_the_notebook(loaded):
    loaded.task.describe = lambda batch, index: {"price": "<script>alert(1)</script>"}
    assert "<script>" not in loaded.batch(1)._repr_html_()


def test_an_unknown_split_is_named(loaded):
    with pytest.raises(PerennialError, match="there is no split 'dev'"):
        loaded.batch(split="dev")


def test_sanity_gives_results_and_shows_its_report(project, tmp_path):
    contract = project / "contract.toml"
    result = sanity(contract, only=["labels"], home=tmp_path / "home")
    assert result.passed
    assert "labels" in {each.check for each in result.report.results}
    assert '<iframe sandbox srcdoc="' in result._repr_html_()
    again = sanity(contract, only=["labels"], home=tmp_path / "home")
    assert again.report == result.report
    assert str(again.page) in str(again)


def test_every_name_of_the_api_exists_and_unknown_ones_are_refused():
    assert all(getattr(api, name) is not None for name in api.__all__)
    assert dir(api) == sorted(api.__all__)
    with pytest.raises(AttributeError, match="it has LABEL"):
        api.lode  # noqa: B018


def test_the_reference_is_made_of_docstrings_and_its_modules_exist(tmp_path):
    makefile = (Path(__file__).resolve().parents[3] / "Makefile").read_text().replace("\\\n", "")
    names = re.search(r"^API := \$\(addprefix perennial\.,(.*)\)$", makefile, re.M)[1].split()
    assert [name for name in names if find_spec(f"perennial.{name}") is None] == []
    subprocess.run(
        [sys.executable, "-m", "pdoc", "--docformat", "google", "--output-directory", str(tmp_path),
         "perennial.notebook", "perennial.contracts.data"],
        check=True,
    )  # fmt: skip
    page = (tmp_path / "perennial" / "notebook.html").read_text()
    assert "Load a contract and check its task" in page
    assert "The column to predict." in (tmp_path / "perennial/contracts/data.html").read_text()


def test_a_task_can_be_imported_without_kubeflow():
    program = "import sys; from perennial.api import LABEL, Task; sys.exit('kfp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
