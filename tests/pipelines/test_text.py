"""A language model through the whole job: documents in, a champion out, a new language noticed."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from documents import documents
from perennial.contracts.gate import Verdict
from perennial.contracts.monitoring import DriftReport
from perennial.contracts.skeleton import SkeletonReport
from perennial.runs import Home

EXAMPLE = Path(__file__).parents[2] / "examples" / "text"
pytestmark = pytest.mark.timeout(600)

CONTRACT = """
[model]
name = "sentences"
task = "perennial.tasks.language_modeling:CausalLanguageModel"
options = { context_length = 24, width = 32, layers = 2, heads = 2 }

[data]
uri = "data"
label = "text"
features = ["text"]
text = ["text"]
time = "time"
ids = ["id"]

[expectations]
max_repeated_share = 1.0
max_overlap_share = 1.0

[skeleton]
sample_rows = 64
batch_rows = 8
training_steps = 40
overfit_rows = 4
learning_rates = [1e-2]

[training]
steps = 60
global_batch_size = 32
micro_batch_size = 16
optimizer = { learning_rate = 1e-2 }
evaluate_every_steps = 20

[gate]
resamples = 200
min_test_rows = 100

[triggers] # what is found is looked at, not acted upon
drift = false
performance = false
min_labelled_rows = 20
"""


def perennial(project: Path, *arguments: str) -> Path:
    """The folder of the run."""
    done = subprocess.run(
        [sys.executable, "-m", "perennial.cli", *arguments, str(project / "contract.toml")],
        capture_output=True, text=True, check=False,
        env=os.environ | {"PERENNIAL_HOME": str(project / "home")},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    home = Home(project / "home")
    return home.folder(home.runs()[-1].run_id)


def output(folder: Path, step: str, name: str) -> Path:
    (found,) = (folder / "steps").glob(f"{step}-*/{name}")
    return found


@pytest.mark.full
def test_a_language_model_is_trained_evaluated_and_monitored(tmp_path):
    (tmp_path / "contract.toml").write_text(CONTRACT)
    (tmp_path / "data").mkdir()
    documents(600).write_parquet(tmp_path / "data" / "first.parquet")

    folder = perennial(tmp_path, "run")
    skeleton = SkeletonReport.read(output(folder, "check_skeleton", "skeleton"))
    skipped = {result.check for result in skeleton.results if result.outcome == "skipped"}
    assert {"augmentation", "initial_bias"} <= skipped
    assert not {"future_independence", "next_token", "rank_equivalence", "resume_trial"} & skipped
    verdict = Verdict.read(output(folder, "evaluate_model", "verdict"))
    assert verdict.promote, verdict.summary
    measured = {entry.metric: entry.challenger for entry in verdict.comparisons}
    assert set(measured) == {"bits_per_byte", "perplexity"}
    assert measured["perplexity"] < verdict.baselines["constant"]["perplexity"] / 2
    assert "No calibration curve" in (folder / "report.html").read_text()

    words = ("ANOTHER", "LANGUAGE", "WITH", "LOUD", "WORDS")
    later = documents(300, words=words).with_columns(
        pl.col("id") + 1000, pl.col("time").dt.offset_by("59d")
    )
    later.write_parquet(tmp_path / "data" / "second.parquet")
    found = DriftReport.read(output(perennial(tmp_path, "monitor"), "detect_drift", "drift"))
    assert found.drifted, "the texts' characters are others"
    assert found.decayed, "the champion's loss on them is worse"


@pytest.fixture
def prepare(monkeypatch):
    """The example's script; one library stands for all, so that little is read."""
    spec = importlib.util.spec_from_file_location("prepare_text", EXAMPLE / "prepare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SOURCES", ((("numpy",), range(1, 4)),))
    return module


def test_months_are_written_once_the_same_way_and_share_no_document(prepare, tmp_path):
    first = prepare.write_months(tmp_path / "a", [1, 2])
    again = prepare.write_months(tmp_path / "b", [2])
    assert first[1].read_bytes() == again[0].read_bytes()
    assert prepare.write_months(tmp_path / "a", [1, 2]) == []
    months = [pl.read_parquet(path, hive_partitioning=False) for path in first]
    for number, month in enumerate(months, start=1):
        assert month["arrived"].dt.month().unique().to_list() == [number]
        assert month["arrived"].is_sorted()
    texts = pl.concat(months)["text"]
    assert texts.n_unique() == len(texts) > 1000
    assert texts.str.len_chars().min() >= prepare.SHORTEST
    with pytest.raises(ValueError, match="1 to 3"):
        prepare.write_months(tmp_path / "a", [4])
