"""The scripts of docs/adapters, before and after: few lines change, and the loss curve is the same."""

import difflib
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import polars as pl
import pytest
import torch
from sklearn.datasets import load_digits
from tokenizers import Tokenizer, models, pre_tokenizers

from perennial.contracts.data import DataSection, ModelSection, Split, SplitSection
from perennial.contracts.training import TrainingResult
from perennial.data.dataset import Dataset
from perennial.engine.config.training import TrainingSection
from perennial.engine.job import TrainingJob
from perennial.engine.task import load_task_type
from perennial.snapshot_data.manifest import take_snapshot
from perennial.tasks.lightning import training_options
from tiny_training import main_beside, run_ranks

PAGES = Path(__file__).resolve().parents[2] / "docs" / "adapters"
MOST_CHANGED = 15
PLAIN = {
    "optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.0, "nesterov": False},
    "schedule": {"shape": "constant", "warmup_fraction": 0.0},
    "clipping": {"method": "none"},
}
WORDS = ("[PAD]", "[UNK]", "good", "bad", "great", "awful", "the", "a", "film", "was")


def digits() -> tuple[pl.DataFrame, str]:
    pixels, digit = load_digits(return_X_y=True)
    frame = pl.DataFrame(pixels, schema=[f"p{i:02}" for i in range(64)])
    return frame.with_columns(digit=digit, row=pl.int_range(len(digit))).head(600), "digit"


def reviews() -> tuple[pl.DataFrame, str]:
    texts = [f"the film was {WORDS[2 + row % 4]} a film {WORDS[2 + row % 7]}" for row in range(300)]
    return pl.DataFrame(
        {"row": range(300), "text": texts, "label": [row % 2 for row in range(300)]}
    ), "label"


def write_tokenizer(folder: Path) -> None:
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))


def scripts(page: str) -> tuple[str, str]:
    before, after = re.findall(r"```python\n(.*?)```", (PAGES / f"{page}.md").read_text(), re.S)
    return before, after


def losses_of(script: Path) -> list[float]:
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=script.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [float(line) for line in done.stdout.split()]


@pytest.mark.parametrize("page", ["dataset", "lightning", "huggingface"])
def test_few_lines_change(page):
    before, after = (script.splitlines() for script in scripts(page))
    changed = [
        line for line in difflib.ndiff(before, after) if line[:2] == "+ " and line[2:].strip()
    ]
    assert len(changed) <= MOST_CHANGED, changed


@pytest.mark.parametrize(
    ("page", "data", "task"),
    [
        ("dataset", digits, "DigitsTask"),
        pytest.param("lightning", digits, "DigitsTask", marks=pytest.mark.full),
        pytest.param("huggingface", reviews, "Reviews", marks=pytest.mark.full),
    ],
)
def test_the_loss_curve_is_the_scripts(page, data, task, tmp_path, monkeypatch):
    if page == "lightning":
        pytest.importorskip("lightning")
    frame, label = data()
    (tmp_path / "data").mkdir()
    frame.write_parquet(tmp_path / "data" / "part.parquet")
    section = DataSection(uri=str(tmp_path / "data"), label=label, ids=("row",))
    snapshot = take_snapshot(section, SplitSection())
    train = Dataset(snapshot).scan(Split.TRAIN).collect()
    train.write_parquet(tmp_path / "train.parquet")
    write_tokenizer(tmp_path)
    before, after = scripts(page)
    (tmp_path / "train.py").write_text(before)
    expected = losses_of(tmp_path / "train.py")

    module = f"{page}_page_task"
    (tmp_path / f"{module}.py").write_text(after)
    options = PLAIN
    if page == "lightning":
        monkeypatch.syspath_prepend(tmp_path)
        options = training_options(sys.modules[load_task_type(f"{module}:{task}").__module__].Net())
    snapshot.write(tmp_path / "snapshot")
    steps = {"steps": len(expected), "evaluate_every_steps": 5, "log_every_steps": 1}
    rows = {"global_batch_size": train.height, "micro_batch_size": train.height}
    job = TrainingJob(
        fingerprint=page, snapshot=str(tmp_path / "snapshot"), num_processes=1,
        model=ModelSection(name="digits", task=f"{module}:{task}"),
        training=TrainingSection.model_validate(
            {"strategy": "single", "seed": 0, **steps, **rows, **options}, strict=False
        ),
        folder=str(tmp_path),
    )  # fmt: skip
    assert run_ranks(job, partial(main_beside, tmp_path)) == [0]
    curve = [point.loss for point in TrainingResult.read(tmp_path).history]
    assert len(curve) == 15
    torch.testing.assert_close(curve, expected, rtol=1e-6, atol=1e-6)
    assert curve[-1] < curve[0]
