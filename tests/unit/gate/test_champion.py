"""A champion is scored on the challenger's rows; the verdict notes what is unfair. A machine without memory decides nothing."""

import json
from datetime import UTC, datetime, timedelta

import pytest
import torch

from perennial.contracts.data import Split
from perennial.contracts.errors import DamagedModelError, OutageError
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.engine.evaluation.scoring import score_split
from perennial.gate import scoring
from perennial.gate.champion import read_champion
from perennial.gate.comparison import Contender
from perennial.registry.version_files import ModelVersion
from small_models import GOOD, NOISY, linear_model, stream, write_challenger, write_snapshot


@pytest.fixture
def folder(tmp_path):
    """The champion's files."""
    return tmp_path / "champion"


@pytest.fixture
def read(tmp_path, folder):
    snapshot = write_snapshot(tmp_path / "data", stream(days=31))
    write_challenger(folder, snapshot, NOISY)
    snapshot.write(folder)
    dataset = Dataset(snapshot)
    task, model = linear_model(snapshot, GOOD)
    challenger = Contender(task, score_split(task, model, dataset, Split.TEST))
    version = ModelVersion("clicks", "3", {}, "", str(folder), datetime.now(UTC))
    return lambda: read_champion(folder, version, dataset, challenger)


def test_a_champion_with_the_current_code_is_scored_without_a_note(read):
    found = read()
    assert (found.failure, found.notes) == ("", ())
    assert found.contender is not None


@pytest.mark.parametrize("changed", ["a task of Perennial", "a package"])
@pytest.mark.parametrize("then", ["the same", "otherwise", "unknown"])
def test_code_that_no_version_carries_is_measured_on_its_example_rows(read, folder, changed, then):
    """A package that the task is in, or uses, may have been upgraded since."""
    if changed == "a package":
        requirements = folder / "requirements.txt"
        requirements.write_text(requirements.read_text().replace("torch==2.", "torch==1."))
    else:
        carried = folder / "code/perennial/tasks/tabular.py"
        carried.write_text(carried.read_text().replace("def encode", "def encode_otherwise"))
    known = folder / "example_predictions.json"
    predictions = json.loads(known.read_text())
    if then == "otherwise":
        known.write_text(json.dumps([[1 - one] for (one,) in predictions]))
    elif then == "unknown":  # a version of before
        known.unlink()
    found = read()
    named = "torch 1." if changed == "a package" else "perennial/tasks/tabular.py"
    if then == "otherwise":
        assert found.contender is None
        assert "no longer predicts its example rows as when it was registered" in found.failure
        assert named in found.failure
    elif then == "the same":
        assert (found.failure, found.notes) == ("", ())
    else:
        (note,) = found.notes
        assert note.startswith("version 3 was registered with ")
        assert named in note


@pytest.mark.parametrize(("days", "outdated"), [(1, True), (0, False)])
def test_its_age_is_known_although_the_time_columns_type_changed(read, folder, days, outdated):
    then = Snapshot.read(folder)
    newest = then.time_max.replace(tzinfo=UTC) - timedelta(days=days)
    then.model_copy(update={"time_max": newest}).write(folder)
    assert read().outdated is outdated


@pytest.mark.hostile
def test_a_partition_that_the_champion_was_trained_on_and_that_is_gone_is_noted(read, folder):
    then = Snapshot.read(folder)
    (file, *_) = then.files
    lost = file.model_copy(update={"uri": f"{then.data.uri}/lost.parquet", "sha256": "0" * 64})
    then.model_copy(update={"files": (*then.files, lost)}).write(folder)
    (note,) = read().notes
    assert note.startswith("since version 3 was trained, of ")
    assert f"1 is gone ({file.rows:,} rows: 'lost.parquet')" in note


def test_a_machine_without_memory_is_an_error_not_a_free_pass(read, monkeypatch):
    """PyTorch raises an error of the kind that a champion's own code may raise, too."""
    monkeypatch.setattr(scoring, "load_model", lambda *_: torch.empty(1 << 50))
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        read()


def test_a_store_that_does_not_answer_is_an_error_not_a_free_pass(read, monkeypatch):
    """The rows of the champion's turn could not be read."""

    def fail(*_):
        raise OutageError("s3://rows does not answer after 600 s of waiting")

    monkeypatch.setattr(scoring, "load_model", fail)
    with pytest.raises(OutageError, match="does not answer"):
        read()


@pytest.mark.parametrize("error", [KeyError("embedding"), SystemExit(0)])
def test_a_champion_whose_code_raises_cannot_be_scored(read, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(scoring, "load_model", fail)
    found = read()
    assert found.contender is None
    assert found.failure.startswith(type(error).__name__)


@pytest.mark.parametrize("name", ["model.safetensors", "challenger.json", "snapshot.json"])
def test_a_damaged_file_is_an_error_that_names_it_and_the_ways_out(read, folder, name):
    (folder / name).write_bytes(b"damaged")
    with pytest.raises(DamagedModelError, match=f"clicks version 3 is damaged: {name}") as stopped:
        read()
    assert "perennial promote clicks N --force" in stopped.value.action
