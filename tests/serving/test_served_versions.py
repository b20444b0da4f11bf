"""A version is served by its alias alone: raw rows in, the evaluation's predictions out."""

import re
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from mlflow.models import Model
from mlflow.types import DataType
from sklearn.datasets import load_digits

import perennial.tasks
from own_tasks import write_sentences
from perennial.contracts.data import DataSection, ModelSection, Split, SplitSection
from perennial.contracts.initial import EnsembleSection
from perennial.contracts.training import Challenger
from perennial.data.dataset import Dataset
from perennial.engine.evaluation.scoring import score_split
from perennial.engine.export import load_model, write_weights
from perennial.engine.serving.servable import make_servable
from perennial.engine.task import load_task
from perennial.gate.serving import serve_in_clean_process
from perennial.registry.earlier_versions import resolve_champions
from perennial.registry.model_registry import open_registry
from perennial.snapshot_data.manifest import take_snapshot
from registered_versions import NAME
from small_models import GOOD, NOISY, OPTIONS, TASK, stream, write_snapshot


def test_the_champion_answers_a_stranger_as_it_answered_the_gate(
    register, environment, ask, tmp_path
):
    register(GOOD)
    registry = open_registry(environment)
    folder = registry.download(registry.version_by_alias(NAME, "champion"), tmp_path / "files")
    dataset = Dataset(write_snapshot(tmp_path / "data", stream()))
    evaluated = score_split(*load_model(folder), dataset, Split.TEST)
    rows = dataset.collect(dataset.scan(Split.TEST))
    questions = {
        "raw": rows,
        "other_order": rows.select(sorted(rows.columns, reverse=True)),
        "missing": rows.drop("signal"),
        "words": rows.with_columns(signal=pl.lit("far")),
        "gaps": rows.head(2).with_columns(noise=pl.lit(None, dtype=pl.Float64)),
    }
    answer = ask(f"models:/{NAME}@champion", questions, tracking_uri=environment.tracking_uri)

    assert answer["raw"]["names"] == ["probability_1"]
    found = np.array(answer["raw"]["rows"])[:, 0]
    assert np.abs(found - evaluated.predictions).max() <= 1e-6
    assert answer["other_order"] == answer["raw"], (
        "columns are known by name; unknown ones are ignored"
    )
    assert len(answer["gaps"]["rows"]) == 2, "a missing value is not a missing column"
    assert "missing inputs ['signal']" in answer["missing"]["refused"]
    assert "signal" in answer["words"]["refused"]
    assert "Can not safely convert" in answer["words"]["refused"]
    assert answer["loaded"]["heavy"] == []
    assert "/code/perennial/" in answer["loaded"]["code"], "the version's own code, not this one's"


@pytest.fixture
def digit_images(tmp_path, monkeypatch):
    """The task of the README in one file, a model of it, and its data."""
    text = (Path(perennial.tasks.__path__[0]) / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    beside = tmp_path / "contract"
    beside.mkdir()
    (beside / "digit_images.py").write_text(code)
    monkeypatch.syspath_prepend(beside)
    digits = load_digits()
    frame = pl.DataFrame(digits.data, schema=[f"pixel_{i:02}" for i in range(64)])
    (tmp_path / "data").mkdir()
    frame.with_columns(digit=digits.target, image=pl.int_range(frame.height)).write_parquet(
        tmp_path / "data" / "part.parquet"
    )
    data = DataSection(uri=str(tmp_path / "data"), label="digit", ids=("image",))
    dataset = Dataset(take_snapshot(data, SplitSection()))
    task = load_task("digit_images:DigitImages", {}, dataset.snapshot.task_columns)
    task.fit(dataset.scan(Split.TRAIN))
    folder = tmp_path / "challenger"
    Challenger(
        task="digit_images:DigitImages", options={}, task_state=task.state(), columns=task.columns,
        training_fingerprint="f", metric="accuracy", direction="maximize", chosen_step=1,
        candidates=(), reason="the only one", diagnosis=(),
        weights_sha256=write_weights(task.build_model(), folder),
    ).write(folder)  # fmt: skip
    make_servable(folder, dataset)
    return folder, dataset


def test_a_task_in_one_file_is_served_without_that_file(digit_images):
    folder, dataset = digit_images
    task, model = load_model(folder)
    predictions = score_split(task, model, dataset, Split.TEST).predictions
    assert (folder / "code" / "digit_images.py").is_file()
    served = serve_in_clean_process(folder, task, dataset, predictions)
    assert served.failure == ""
    assert served.rows > 0


def test_code_that_does_not_travel_is_found_by_the_gate(digit_images):
    folder, dataset = digit_images
    task, model = load_model(folder)
    predictions = score_split(task, model, dataset, Split.TEST).predictions
    (folder / "code" / "digit_images.py").unlink()
    assert "digit_images" in serve_in_clean_process(folder, task, dataset, predictions).failure


@pytest.fixture
def tagger(tmp_path):
    """A token classification with random weights, which answers texts, and its data."""
    (tmp_path / "data").mkdir()
    dataset = Dataset(write_sentences(tmp_path / "data", rows=200))
    name, options = "perennial.tasks.token_classification:TokenClassification", {"width": 32}
    task = load_task(name, options, dataset.snapshot.task_columns)
    task.fit(dataset.scan(Split.TRAIN))
    folder = tmp_path / "challenger"
    torch.manual_seed(0)
    Challenger(
        task=name, options=options, task_state=task.state(), columns=task.columns,
        training_fingerprint="f", metric="mean_loss", direction="minimize", chosen_step=1,
        candidates=(), reason="the only one", diagnosis=(),
        weights_sha256=write_weights(task.build_model(), folder),
    ).write(folder)  # fmt: skip
    make_servable(folder, dataset)
    return folder, dataset


def test_texts_are_served_and_compared_with_the_evaluations(tagger):
    folder, dataset = tagger
    model = Model.load(str(folder))
    assert [(each.name, each.type) for each in model.signature.outputs] == [
        ("tags", DataType.string)
    ]
    task, model = load_model(folder)
    predictions = score_split(task, model, dataset, Split.TEST).predictions
    served = serve_in_clean_process(folder, task, dataset, predictions)
    assert (served.failure, served.rows > 0) == ("", True)
    code = folder / "code" / "perennial" / "tasks" / "token_classification.py"
    edited = code.read_text().replace(
        "*self.fitted.classes, UNREAD", "UNREAD, *self.fitted.classes"
    )
    code.write_text(edited)
    served = serve_in_clean_process(folder, task, dataset, predictions)
    assert "answers differ from the evaluation's" in served.failure


@pytest.fixture
def edited_task(tmp_path, monkeypatch):
    """Exports a model of a task in a file of the user, of which a number was edited."""

    def export(scale):
        beside = tmp_path / "contract"
        beside.mkdir(exist_ok=True)
        monkeypatch.syspath_prepend(beside)
        (beside / "scaled.py").write_text(
            "from perennial.tasks.tabular import TabularRegression\n\n\n"
            "class Scaled(TabularRegression):\n"
            "    def predict(self, output):\n"
            f"        return {scale} * super().predict(output)\n"
        )
        sys.modules.pop("scaled", None)
        snapshot = write_snapshot(tmp_path / "data", stream())
        task = load_task("scaled:Scaled", OPTIONS, snapshot.task_columns)
        task.fit(Dataset(snapshot).scan(Split.TRAIN))
        torch.manual_seed(0)
        folder = tmp_path / f"scaled-by-{scale}"
        Challenger(
            task="scaled:Scaled", options=OPTIONS, task_state=task.state(), columns=task.columns,
            training_fingerprint="f", metric="rmse", direction="minimize", chosen_step=1,
            candidates=(), reason="the only one", diagnosis=(),
            weights_sha256=write_weights(task.build_model(), folder),
        ).write(folder)  # fmt: skip
        make_servable(folder, Dataset(snapshot))
        return folder

    yield export
    sys.modules.pop("scaled", None)


def test_two_versions_in_one_process_run_each_its_own_code(edited_task, ask):
    first, second = edited_task(1.0), edited_task(-2.0)
    rows = {"rows": stream().head(5)}
    alone = ask(str(second), rows, tracking_uri="")
    after_the_first = ask(str(second), rows, tracking_uri="", earlier=[str(first)])
    assert after_the_first["rows"] == alone["rows"]
    assert after_the_first["rows"] != ask(str(first), rows, tracking_uri="")["rows"]


def test_an_ensemble_is_loaded_beside_a_version_without_its_code(
    register, environment, ask, tmp_path
):
    register(GOOD)
    now = write_snapshot(tmp_path / "newer", stream(days=95))
    section = ModelSection(name=NAME, task=TASK, options=OPTIONS, ensemble=EnsembleSection())
    register(NOISY, "1", seed=8, among=resolve_champions(section, now, environment))
    first, second = f"models:/{NAME}/1", f"models:/{NAME}@champion"
    rows = {"rows": stream().head(5)}
    uri = environment.tracking_uri
    alone = ask(second, rows, tracking_uri=uri)
    assert ask(second, rows, tracking_uri=uri, earlier=[first])["rows"] == alone["rows"]
