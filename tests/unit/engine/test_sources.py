"""A served model carries the files that it needs and no other, and names the packages exactly."""

import importlib.metadata
from importlib.metadata import version

import pytest

from perennial.engine.sources import sources_of

TASK = """
import json
from typing import TYPE_CHECKING

import numpy.typing
from PIL import Image

from perennial.tasks.tabular import TabularRegression
from layers.blocks import Block

if TYPE_CHECKING:
    import scipy.stats
else:
    from beside import used

try:
    import package_that_nobody_has
except ImportError:
    pass
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    for name, text in {
        "prices_task.py": TASK,
        "layers/__init__.py": "",
        "layers/blocks.py": "from . import norms\nfrom .norms import Norm\nfrom ..up import x",
        "layers/norms.py": "Norm = Block = 1",
        "layers/unused.py": "",
        "beside.py": "import importlib\nimportlib.import_module('sklearn')\nused = 1",
        "unused.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text.replace("from ..up import x", ""))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_task_beside_its_contract_travels_with_what_it_imports(project):
    files = sources_of(["prices_task"]).files
    own = {name: file for name, file in files.items() if not name.startswith("perennial/")}
    assert sorted(own) == [
        "beside.py", "layers/__init__.py", "layers/blocks.py", "layers/norms.py", "prices_task.py",
    ]  # fmt: skip
    assert own["layers/norms.py"] == project / "layers" / "norms.py"
    assert {"perennial/engine/__init__.py", "perennial/engine/task.py"} <= set(files)


def test_installed_packages_are_required_in_the_version_that_is_installed(project):
    found = sources_of(["prices_task"]).distributions
    assert found["pillow"] == version("pillow")
    assert found["torch"] == version("torch").partition("+")[0], "no index has local builds"
    assert {"numpy", "polars", "pydantic"} <= set(found)
    assert not {"scipy", "package_that_nobody_has"} & set(found), "never imported where it serves"


@pytest.mark.parametrize("asked", [True, False])
def test_a_package_that_is_asked_for_by_name_counts_if_it_was_asked_for(
    project, monkeypatch, asked
):
    if asked:
        import sklearn  # noqa: F401
    else:
        monkeypatch.delitem(__import__("sys").modules, "sklearn", raising=False)
    assert ("scikit-learn" in sources_of(["beside"]).distributions) is asked


def test_a_part_of_mlflow_in_the_trainers_image_is_required_as_the_whole(project, monkeypatch):
    installed = importlib.metadata.distribution

    def as_in_the_image(name):
        if name == "mlflow":
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)

    parts = {"mlflow": ["mlflow-skinny", "mlflow-tracing"]}
    monkeypatch.setattr(importlib.metadata, "distribution", as_in_the_image)
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: parts)
    found = sources_of(["perennial.engine.serving.pyfunc"]).distributions
    assert found["mlflow"] == version("mlflow-skinny")
    assert not {"mlflow-skinny", "mlflow-tracing"} & set(found)


def test_what_serves_a_model_needs_nothing_of_its_training():
    names = ("tabular", "image_classification", "language_modeling", "image_text")
    found = sources_of(
        ["perennial.engine.serving.pyfunc", *(f"perennial.tasks.{name}" for name in names)]
    )
    light = {
        "mlflow", "numpy", "pandas", "pillow", "polars",
        "pyarrow", "pydantic", "safetensors", "tokenizers", "torch", "typing_extensions",
    }  # fmt: skip
    assert set(found.distributions) <= light
    assert not [name for name in found.files if "/step.py" in name or "loop.py" in name]
