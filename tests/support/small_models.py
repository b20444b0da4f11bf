"""A small stream with days, linear models of chosen quality on it, and a fresh MLflow database."""

import base64
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import roc_auc_score

from perennial.clients import mlflow_client
from perennial.contracts.data import DataSection, Split, SplitSection
from perennial.contracts.environment import Environment
from perennial.contracts.initial import EnsembleSection
from perennial.contracts.initial_model import Champions, InitialModel
from perennial.contracts.skeleton import SkeletonReport
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import Challenger
from perennial.data.dataset import Dataset
from perennial.engine.evaluation.baseline_rows import BaselineRows
from perennial.engine.evaluation.resampling import blocks_of
from perennial.engine.export import write_weights
from perennial.engine.serving.servable import make_servable
from perennial.engine.task import load_task
from perennial.select_checkpoint.ensembling import consider_ensemble
from perennial.snapshot_data.manifest import take_snapshot

TASK = "perennial.tasks.tabular:TabularClassification"
OPTIONS = {"hidden": [], "dropout": 0.0}
DAYS, ROWS_PER_DAY = 90, 30
GOOD, NOISY, USELESS = (2.0, 0.0), (2.0, 2.0), (0.0, 0.5)


def stream(seed: int = 0, *, days: int = DAYS) -> pl.DataFrame:
    """P(label) follows `signal`; `noise` means nothing; `region` b holds a fifth of the rows."""
    random = np.random.default_rng(seed)
    count = days * ROWS_PER_DAY
    signal = random.normal(size=count)
    label = random.random(count) < 1 / (1 + np.exp(-2 * signal))
    start = datetime(2025, 1, 1)
    hours = [timedelta(hours=24 * row / ROWS_PER_DAY) for row in range(count)]
    return pl.DataFrame(
        {
            "row": np.arange(count),
            "time": [start + offset for offset in hours],
            "signal": signal,
            "noise": random.normal(size=count),
            "region": np.where(random.random(count) < 0.2, "b", "a"),
            "label": label.astype(np.int64),
        }
    )


def write_snapshot(folder: Path, frame: pl.DataFrame, **split: object) -> Snapshot:
    """The frame as a dataset of one file, and its snapshot."""
    folder.mkdir(parents=True, exist_ok=True)
    frame.write_parquet(folder / "part.parquet")
    data = DataSection(uri=str(folder), label="label", time="time", ids=("row",), meta=("region",))
    made = take_snapshot(data, SplitSection(**split))
    # As every step sees it: read back from its file.
    return Snapshot.from_json(made.to_json())


def linear_model(snapshot: Snapshot, weights: tuple[float, float], path: str = TASK):
    """A task fitted on the snapshot, and a model with the given weights of signal and noise."""
    task = load_task(path, OPTIONS, snapshot.task_columns)
    task.fit(Dataset(snapshot).scan(Split.TRAIN))
    model = task.build_model()
    with torch.no_grad():
        by_name = dict(zip(("signal", "noise"), weights, strict=True))
        model.output.weight.copy_(torch.tensor([[by_name[name] for name in task.fitted.numeric]]))
        model.output.bias.zero_()
    return task, model


def write_challenger(
    folder: Path,
    snapshot: Snapshot,
    weights: tuple[float, float],
    fingerprint: str = "training",
    *,
    initial: InitialModel | None = None,
    path: str = TASK,
    **training: object,
) -> Challenger:
    """An exported model with the given weights."""
    task, model = linear_model(snapshot, weights, path)
    challenger = Challenger(
        task=path,
        options=OPTIONS,
        task_state=task.state(),
        columns=snapshot.task_columns,
        training_fingerprint=fingerprint,
        metric="roc_auc",
        direction="maximize",
        chosen_step=1,
        candidates=(),
        reason="step 1: the only checkpoint kept",
        diagnosis=(),
        weights_sha256=write_weights(model, folder),
        initial=initial,
        **training,
    )
    challenger.write(folder)
    make_servable(folder, Dataset(snapshot))
    return challenger


def average_with(folder: Path, snapshot: Snapshot, champions: Champions) -> Challenger:
    """An exported model, made the first member of an ensemble whatever that gains."""
    dataset = Dataset(snapshot)
    rows = dataset.scan(Split.VALIDATION).collect()
    found = consider_ensemble(
        EnsembleSection(gain_standard_errors=0.0), champions, folder, dataset,
        blocks_of(rows, snapshot.data, snapshot.split), metric="roc_auc", limits={},
    )  # fmt: skip
    assert found.is_chosen, found
    make_servable(folder, dataset)
    return Challenger.read(folder)


def write_skeleton(folder: Path, **baselines: float) -> SkeletonReport:
    """A report with baselines given by their ROC area."""
    report = SkeletonReport(
        results=(), baselines={name: {"roc_auc": value} for name, value in baselines.items()}
    )
    report.write(folder)
    return report


def write_baseline_rows(folder: Path, snapshot: Snapshot, predictions: np.ndarray) -> None:
    """What a baseline named constant predicts on the test rows, its score beside it."""
    labels = Dataset(snapshot).scan(Split.TEST).collect()["label"].cast(pl.Float64).to_numpy()
    write_skeleton(folder, constant=roc_auc_score(labels, predictions))
    rows = BaselineRows(np.arange(len(labels)), labels, {"constant": predictions})
    # As a version wrote it whose steps handed on folders.
    (folder / "baselines.npz").write_bytes(base64.b64decode(rows.document()))


@pytest.fixture
def environment(tmp_path, monkeypatch) -> Environment:
    """A store and an MLflow database of its own."""
    return lay_out(tmp_path, monkeypatch)


def lay_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """Make a store and an MLflow database in a folder, and set the variables that name them."""
    made = environment_at(folder / "mlflow.db", folder)
    mlflow_client._make_database(made.tracking_uri)
    monkeypatch.setenv("PERENNIAL_STORE_URI", made.store_uri)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", made.tracking_uri)
    monkeypatch.setenv("PERENNIAL_RUN_ID", made.run_id)
    for name in ("MLFLOW_RUN_ID", "PERENNIAL_RUN_FOLDER", "PERENNIAL_LEASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(folder)
    return made


def environment_at(database: Path, folder: Path) -> Environment:
    """A step's environment with this database and a store in the folder."""
    return Environment(
        store_uri=str(folder / "store"),
        tracking_uri=f"sqlite:///{database}",
        run_id="run-1",
        run_folder=None,
        code_digest="code",
        commit="abc",
        tracking_run_id="",
    )
