"""A folder of Parquet files without a time column, through the real steps: files are the blocks."""

import warnings

import numpy as np
import polars as pl
import pytest

from perennial.clients.tracking import open_mlflow
from perennial.contract import load_contract
from perennial.contracts.data import Split
from perennial.contracts.environment import Environment
from perennial.contracts.monitoring import DriftReport, Reference
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import Challenger
from perennial.contracts.validation import ValidationReport
from perennial.data.dataset import Dataset
from perennial.decide_retraining.step import decide_retraining_step
from perennial.detect_drift.step import detect_drift_step
from perennial.engine.evaluation.scoring import score_split
from perennial.engine.export import write_weights
from perennial.gate.figures import performance_by_file
from perennial.registry.model_registry import open_registry
from perennial.snapshot_data.step import snapshot_data_step
from perennial.tasks.tabular import TabularOptions, TabularRegression

with warnings.catch_warnings():
    # Great Expectations imports a module that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from perennial.validate_data.step import validate_data_step

CONTRACT = """
[model]
name = "meters"
task = "perennial.tasks.tabular:TabularRegression"
options = { hidden = [4] }

[data]
uri = "data"
label = "y"
ids = ["id"]

[triggers]
min_labelled_rows = 100
"""
REFERENCE = 12
# MLflow's sqlite store leaves connections to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def rows_of(number, *, rows=400, shift=0.0, noise=1.0, new=0.0):
    """One file's rows; its means differ a little from those of the other files."""
    random = np.random.default_rng(number)
    numbers = random.normal(size=(rows, 3)) + 0.1 * random.normal(size=3) + [shift, 0, 0]
    kind = np.where(random.random(rows) < new, "new", random.choice(["a", "b", "c"], rows))
    return pl.DataFrame(
        {
            "id": [f"{number}-{row}" for row in range(rows)],
            **{name: numbers[:, index] for index, name in enumerate("uvw")},
            "kind": kind,
            "y": numbers[:, 1] + noise * random.normal(size=rows),
        }
    )


class Folder:
    """The dataset and the steps of monitoring on it."""

    def __init__(self, root):
        self.root, self.data = root, root / "data"
        self.data.mkdir()
        (root / "contract.toml").write_text(CONTRACT)

    def add(self, name, rows):
        rows.write_parquet(self.data / name)

    def snapshot(self):
        self.contract = load_contract(self.root / "contract.toml").to_json()
        out = {name: str(self.root / name) for name in ("snapshot", "report")}
        snapshot_data_step(contract=self.contract, **out)
        validate_data_step(
            contract=self.contract, snapshot=out["snapshot"],
            validation=str(self.root / "validation"), report=str(self.root / "validation.html"),
            perennial_suite=str(self.root / "perennial_suite.json"),
        )  # fmt: skip
        return Snapshot.read(self.root / "snapshot")

    def train(self):
        snapshot, folder = self.snapshot(), self.root / "store/champion"
        task = TabularRegression(TabularOptions(hidden=(4,)), snapshot.task_columns)
        dataset = Dataset(snapshot)
        task.fit(dataset.scan(Split.TRAIN))
        model = task.build_model()
        splits = (Split.VALIDATION, Split.TEST)
        scored = {split: score_split(task, model, dataset, split) for split in splits}
        Reference(
            snapshot_digest=snapshot.digest(), time_max=None, rows=snapshot.rows,
            blocks=ValidationReport.read(self.root / "validation").blocks,
            performance=performance_by_file(scored, dataset),
        ).write(folder)  # fmt: skip
        snapshot.write(folder)
        Challenger(
            task="perennial.tasks.tabular:TabularRegression", options={"hidden": [4]},
            task_state=task.state(), columns=snapshot.task_columns, training_fingerprint="",
            metric="rmse", direction="minimize", chosen_step=1, candidates=(), reason="",
            diagnosis=(), weights_sha256=write_weights(model, folder),
        ).write(folder)  # fmt: skip
        environment = Environment.read()
        client = open_mlflow(environment)
        run = client.create_run(client.create_experiment("e", str(self.root / "mlruns")))
        registry = open_registry(environment)
        registry.describe_model("meters", "", {})
        version = registry.register(
            "meters", source=str(folder), run_id=run.info.run_id, fingerprint="f", tags={},
            description="",
        )  # fmt: skip
        registry.promote("meters", version.version, "")

    def look(self):
        """Report, summary and page of detect_drift."""
        self.snapshot()
        result = detect_drift_step(
            contract=self.contract, snapshot=str(self.root / "snapshot"),
            validation=str(self.root / "validation"), drift=str(self.root / "drift"),
            report=str(self.root / "report.html"),
        )  # fmt: skip
        page = (self.root / "report.html").read_text()
        return DriftReport.read(self.root / "drift"), result.summary, page

    def decide(self):
        return decide_retraining_step(
            contract=self.contract, snapshot=str(self.root / "snapshot"),
            drift=str(self.root / "drift"), decision=str(self.root / "decision"),
            report=str(self.root / "decision.html"),
            trigger=str(self.root / "trigger.json"),
        ).summary  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PERENNIAL_STORE_URI", str(tmp_path / "store"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return Folder(tmp_path)


@pytest.fixture
def champion(folder):
    """A champion of twelve files."""
    for number in range(REFERENCE):
        folder.add(f"part-{number}.parquet", rows_of(number))
    folder.train()
    return folder


def test_a_quiet_stream_has_no_drift(champion):
    nothing, summary, _ = champion.look()
    assert nothing.calibration == "none"
    assert summary == "Not judged: no new file since the champion's training."

    for number in (12, 13, 14):
        champion.add(f"part-{number}.parquet", rows_of(number))
    found, summary, page = champion.look()
    assert (found.calibration, found.drifted, found.decayed) == ("blocks", False, False)
    assert [window.title for window in found.windows] == [
        f"file part-{number}.parquet" for number in (12, 13, 14)
    ]
    assert all(window.loss_z_score is not None for window in found.windows)
    assert "part-13.parquet" in page
    assert "blocks since file part-12.parquet" in page
    assert "1970" not in page
    assert "no persistent drift in 3 windows" in champion.decide()


@pytest.mark.parametrize(
    ("change", "column", "statistic"),
    [
        ({"shift": 1.0}, "u", "kolmogorov_smirnov"),
        pytest.param({"new": 0.08}, "kind", "new_values", marks=pytest.mark.full),
    ],
    ids=["one standard deviation", "a new category"],
)
def test_a_change_is_found_and_named_by_the_file_it_began_with(champion, change, column, statistic):
    champion.add("part-12.parquet", rows_of(12))
    for number in (13, 14):
        champion.add(f"part-{number}.parquet", rows_of(number, **change))
    found, summary, page = champion.look()
    assert found.drifted
    assert {
        (moved.column, moved.statistic) for moved in found.windows[-1].columns if moved.alarmed
    } >= {(column, statistic)}
    assert "since file part-13.parquet" in summary
    assert "part-14.parquet" in page
    decided = champion.decide()
    assert decided.startswith("Retrain: features drifted since file part-13.parquet")


def test_a_worse_loss_is_found_file_by_file(champion):
    for number in (12, 13):
        champion.add(f"part-{number}.parquet", rows_of(number, noise=2.0))
    found, summary, _ = champion.look()
    assert (found.drifted, found.decayed) == (False, True)
    assert "performance decay in the newest 2 windows, since file part-12.parquet" in summary
    assert "above its reference, since file part-12.parquet" in champion.decide()


def test_the_order_of_snapshots_counts_not_that_of_names(champion):
    """Writers such as Spark name files at random; the shift is in the two that came last."""
    champion.add("zebra.parquet", rows_of(12))
    champion.look()
    for name, number in (("hippo.parquet", 13), ("ape.parquet", 14)):
        champion.add(name, rows_of(number, shift=1.0))
        champion.look()
    found, summary, _ = champion.look()
    assert [window.files[0].path for window in found.windows] == [
        "zebra.parquet", "hippo.parquet", "ape.parquet"
    ]  # fmt: skip
    assert found.drifted
    assert "since file hippo.parquet" in summary


def test_a_file_that_was_written_again_is_a_new_one(champion):
    champion.add("part-3.parquet", rows_of(40, shift=1.0))
    (champion.data / "part-5.parquet").rename(champion.data / "moved.parquet")
    found, _, _ = champion.look()
    assert [window.files[0].path for window in found.windows] == ["part-3.parquet"]
    assert found.windows[0].alarmed
    assert any("rewritten" in note and "part-3.parquet" in note for note in found.notes)


def test_a_single_file_is_skipped_with_a_reason(folder):
    folder.add("all.parquet", rows_of(0, rows=3000))
    folder.train()
    folder.add("all.parquet", pl.concat([rows_of(0, rows=3000), rows_of(1)]))
    found, summary, _ = folder.look()
    assert (found.calibration, found.drifted) == ("none", False)
    assert "1 block of files to compare with, minimum 5" in summary
    assert "write new data to separate files" in summary
    assert "set data.time" in summary
    assert "no persistent drift" in folder.decide()


def test_a_challenger_that_lost_is_not_repeated_with_every_file(champion, monkeypatch):
    for number in (12, 13, 14, 15):
        champion.add(f"part-{number}.parquet", rows_of(number, shift=1.0))
        champion.look()
        monkeypatch.setenv("PERENNIAL_RUN_ID", f"run-{number}")
        decided = champion.decide()
        if number in (13, 15):
            assert decided.startswith("Retrain: features drifted since file part-12.parquet")
        if number == 14:
            assert "included file part-13.parquet, and 1 of 2 required windows" in decided


def test_files_of_very_unequal_size_neither_alarm_nor_break(folder):
    sizes = [9000, 350, 500, 40, 700, 400, 2500, 450, 380, 600]
    for number, rows in enumerate(sizes):
        folder.add(f"part-{number}.parquet", rows_of(number, rows=rows))
    folder.train()
    for number, rows in ((10, 3), (11, 12_000), (12, 450)):
        folder.add(f"part-{number}.parquet", rows_of(number, rows=rows))
    found, summary, _ = folder.look()
    assert [window.rows for window in found.windows] == [12_000, 450]
    assert not any(window.alarmed or window.decayed for window in found.windows)
    assert "no drift in 2 windows" in summary.lower()
    assert any("1 of 3 new blocks of files" in note for note in found.notes)


@pytest.mark.full
def test_small_files_are_compared_in_groups(folder):
    contract = folder.root / "contract.toml"
    for number in range(96):
        folder.add(f"{number}.parquet", rows_of(number, rows=12))
    folder.train()
    for number in range(96, 113):
        folder.add(f"{number}.parquet", rows_of(number, rows=12, shift=1.5))
    _, summary, _ = folder.look()
    assert "12 rows in the median, minimum 20: raise triggers.files_in_a_block" in summary
    contract.write_text(contract.read_text() + "files_in_a_block = 8\n")
    found, summary, _ = folder.look()
    assert found.drifted
    assert "since files 96.parquet to 103.parquet" in summary
    assert any("incomplete: it has 1 of 8 files" in note for note in found.notes)
