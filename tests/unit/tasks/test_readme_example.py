"""The README's own task must pass the skeleton checks as it stands."""

import re
from pathlib import Path

import polars as pl
import pytest
from sklearn.datasets import load_digits

import perennial.tasks
from perennial.check_skeleton.config import CheckSkeletonConfig, SkeletonSection
from perennial.check_skeleton.step import check_skeleton_step
from perennial.clients.object_store import sha256_of_file
from perennial.contracts.data import DataSection, ModelSection, Split, SplitSection
from perennial.contracts.skeleton import SkeletonReport
from perennial.contracts.snapshot import DataFile, Snapshot
from perennial.data.dataset import split_expression
from perennial.engine.config.training import TrainingSection
from skeleton_tables import TRAINING


@pytest.fixture
def example() -> str:
    text = (Path(perennial.tasks.__path__[0]) / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return code


@pytest.fixture
def snapshot(tmp_path) -> Path:
    digits = load_digits()
    frame = pl.DataFrame(digits.data, schema=[f"pixel_{i:02}" for i in range(64)])
    frame = frame.with_columns(digit=digits.target, image=pl.int_range(len(digits.target)))
    path = tmp_path / "digits.parquet"
    frame.write_parquet(path)
    data = DataSection(uri=str(tmp_path), label="digit", ids=("image",))
    split = SplitSection()
    counts = frame.select(split_expression(data, split).alias("split"))["split"].value_counts()
    file = DataFile(
        uri=str(path),
        size_bytes=path.stat().st_size,
        sha256=sha256_of_file(path),
        rows=frame.height,
    )
    return Snapshot(
        data=data,
        split=split,
        files=(file,),
        columns={name: str(dtype) for name, dtype in frame.schema.items()},
        rows=frame.height,
        split_rows={Split(name): count for name, count in counts.iter_rows()},
    ).write(tmp_path / "snapshot")


def test_example_is_short(example):
    assert len([line for line in example.splitlines() if line.strip()]) <= 60


def test_example_passes_the_skeleton_checks(example, snapshot, tmp_path, monkeypatch):
    (tmp_path / "digit_images.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PERENNIAL_STORE_URI", str(tmp_path / "store"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    config = CheckSkeletonConfig(
        model=ModelSection(name="digits", task="digit_images:DigitImages"),
        skeleton=SkeletonSection(sample_rows=512, batch_rows=64),
        training=TrainingSection.model_validate(TRAINING),
    )
    paths = {name: str(tmp_path / name) for name in ("skeleton", "report")}
    result = check_skeleton_step(contract=config.to_json(), snapshot=str(snapshot.parent), **paths)
    report = SkeletonReport.read(Path(paths["skeleton"]))
    left = {r.check: (r.outcome, r.hint) for r in report.results}
    doubted = {check: what for check, what in left.items() if what[0] in ("warned", "failed")}
    assert not doubted
    assert result.metrics["passed"] > 30
    assert report.baselines["linear"]["accuracy"] > report.baselines["constant"]["accuracy"] + 0.5
    assert Path(paths["report"]).read_text().count("data:image/png;base64,") == 8
