"""The step against a real MLflow database, a real dataset and a real exported model."""

import itertools
import shutil
from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest

from perennial.clients.object_store import sha256_of_file
from perennial.clients.tracking import open_mlflow
from perennial.contracts.data import DataSection, ModelSection, Split, SplitSection
from perennial.contracts.environment import Environment
from perennial.contracts.errors import DamagedModelError, PerennialError
from perennial.contracts.gate import BlockPerformance
from perennial.contracts.monitoring import DriftReport, Reference
from perennial.contracts.snapshot import DataFile, Snapshot
from perennial.contracts.training import Challenger
from perennial.contracts.triggers import MonitoringConfig, TriggersSection
from perennial.contracts.validation import ValidationReport
from perennial.detect_drift import comparison
from perennial.detect_drift.comparison import compare_with_champion
from perennial.detect_drift.step import detect_drift_step
from perennial.engine.export import write_weights
from perennial.registry.champion_records import UnclearChampionError
from perennial.registry.model_registry import open_registry
from perennial.tasks.tabular import TabularOptions, TabularRegression

FIRST = datetime(2024, 1, 4)
WEEK = timedelta(days=7)
ROWS = 600
TASK = "perennial.tasks.tabular:TabularRegression"
# MLflow's sqlite store leaves connections to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def week_of_rows(index, shift=0.0, noise=1.0):
    random = np.random.default_rng(index)
    moments = [FIRST + index * WEEK + row * WEEK / ROWS for row in range(ROWS)]
    x = random.normal(size=ROWS) + shift + 0.1 * random.normal()
    return pl.DataFrame({"t": moments, "x": x, "y": noise * random.normal(size=ROWS)})


@pytest.fixture
def world(tmp_path, monkeypatch, block):
    """A champion trained on 12 weeks, and a way to look at the weeks after it."""
    monkeypatch.setenv("PERENNIAL_STORE_URI", str(tmp_path / "store"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return World(tmp_path, block)


class World:
    def __init__(self, root, block):
        self.root = root
        self.block = block
        self.numbers = itertools.count()

    def snapshot_of(self, weeks):
        folder = self.root / "data"
        folder.mkdir(exist_ok=True)
        files = []
        for index, rows in enumerate(weeks):
            path = folder / f"week-{index:02}.parquet"
            rows.write_parquet(path)
            files.append(
                DataFile(
                    uri=str(path), size_bytes=path.stat().st_size, sha256=sha256_of_file(path),
                    rows=ROWS,
                )
            )  # fmt: skip
        return Snapshot(
            data=DataSection(uri=str(folder), label="y", time="t"), split=SplitSection(),
            files=tuple(files), columns={"t": "Datetime", "x": "Float64", "y": "Float64"},
            rows=ROWS * len(weeks), split_rows=dict.fromkeys(Split, 0),
            time_min=FIRST, time_max=weeks[-1]["t"].max(),
        )  # fmt: skip

    def blocks_of(self, weeks):
        return tuple(self.block(i, {"x": w["x"].to_numpy()}) for i, w in enumerate(weeks))

    def crown(self, weeks, *, fingerprint="f", instead_of=""):
        snapshot = self.snapshot_of(weeks)
        task = TabularRegression(TabularOptions(hidden=(4,)), snapshot.task_columns)
        task.fit(pl.concat(weeks).lazy())
        folder = self.root / "store/champion"
        snapshot.write(folder)
        held_out = tuple(
            BlockPerformance(start=FIRST + i * WEEK, rows=200, loss=1.0 + 0.02 * (-1) ** i)
            for i in range(12)
        )
        Reference(
            snapshot_digest=snapshot.digest(), time_max=snapshot.time_max, rows=snapshot.rows,
            blocks=self.blocks_of(weeks), performance=held_out,
        ).write(folder)  # fmt: skip
        Challenger(
            task=TASK, options={"hidden": [4]}, task_state=task.state(),
            columns=snapshot.task_columns, training_fingerprint="", metric="rmse",
            direction="minimize", chosen_step=1, candidates=(), reason="", diagnosis=(),
            weights_sha256=write_weights(task.build_model(), folder),
        ).write(folder)  # fmt: skip
        environment = Environment.read()
        client = open_mlflow(environment)
        run = client.create_run(
            client.create_experiment(f"e{next(self.numbers)}", str(self.root / "mlruns"))
        )
        registry = open_registry(environment)
        registry.describe_model("demo", "", {})
        version = registry.register(
            "demo", source=str(folder), run_id=run.info.run_id, fingerprint=fingerprint, tags={},
            description="",
        )  # fmt: skip
        registry.promote("demo", version.version, instead_of)

    def detect(self, weeks, digest=None, **triggers):
        snapshot = self.snapshot_of(weeks)
        snapshot.write(self.root / "snapshot")
        ValidationReport(
            snapshot_digest=digest or snapshot.digest(), facts={}, expectations=(),
            blocks=self.blocks_of(weeks),
        ).write(self.root / "validation")  # fmt: skip
        config = MonitoringConfig(
            model=ModelSection(name="demo", task=TASK),
            triggers=TriggersSection(**({"min_labelled_rows": 100} | triggers)),
        )
        result = detect_drift_step(
            contract=config.to_json(), snapshot=str(self.root / "snapshot"),
            validation=str(self.root / "validation"), drift=str(self.root / "drift"),
            report=str(self.root / "report.html"),
        )  # fmt: skip
        page = (self.root / "report.html").read_text()
        return DriftReport.read(self.root / "drift"), result, page


def test_without_a_champion_the_report_states_it(world):
    found, result, page = world.detect([week_of_rows(i) for i in range(2)])
    assert found.champion_version == ""
    assert "No champion yet" in result.summary
    assert result.summary in page


def test_a_quiet_stream_a_drifted_one_and_a_decayed_one(world):
    quiet = [week_of_rows(i) for i in range(14)]
    world.crown(quiet[:12])

    found, result, page = world.detect(quiet)
    assert (found.champion_version, found.calibration) == ("1", "blocks")
    assert len(found.windows) == 2
    assert not found.drifted
    assert not found.decayed
    assert all(0.7 < window.loss < 1.3 for window in found.windows)
    assert (found.new_rows, round(found.new_days)) == (2 * ROWS, 14)
    assert result.metrics["windows"] == 2
    assert "Passed" in page
    # Of these, the champion had eight; four older ones have been deleted.
    assert world.detect(quiet[4:])[0].new_rows == 2 * ROWS

    drifted, result, page = world.detect(
        quiet[:12] + [week_of_rows(i, shift=2.0) for i in (12, 13)]
    )
    assert drifted.drifted
    assert not drifted.decayed
    assert drifted.windows[0].columns[0].column == "x"
    assert "Drift in the newest 2 windows, since 2024-03-28" in result.summary
    assert page.count("<svg") == 2
    assert "src=" not in page

    decayed, result, _ = world.detect(quiet[:12] + [week_of_rows(i, noise=1.5) for i in (12, 13)])
    assert decayed.decayed
    assert not decayed.drifted
    assert "performance decay in the newest 2 windows" in result.summary

    nothing_new, result, _ = world.detect(quiet[:12])
    assert nothing_new.calibration == "none"
    assert "no complete block of new data since 2024-03-2" in result.summary


@pytest.fixture
def compared(world, monkeypatch):
    """How often the champion was compared, after 14 weeks were looked at once."""
    calls = []

    def counted(*args, **kwargs):
        calls.append(args)
        return compare_with_champion(*args, **kwargs)

    monkeypatch.setattr(comparison, "compare_with_champion", counted)
    weeks = [week_of_rows(i) for i in range(14)]
    world.crown(weeks[:12])
    world.detect(weeks)
    return calls


def test_with_nothing_new_no_row_and_no_weight_is_read_again(world, compared):
    weeks = [week_of_rows(i) for i in range(14)]
    first = DriftReport.read(world.root / "drift")
    shutil.rmtree(world.root / "store/champion")
    found, result, page = world.detect(weeks)
    assert len(compared) == 1
    assert found == first.model_copy(update={"unchanged_since": found.unchanged_since})
    assert result.summary.startswith(
        f"Nothing new since {found.unchanged_since:%Y-%m-%d %H:%M} UTC. No drift"
    )
    assert result.summary in page
    assert world.detect(weeks)[0].unchanged_since == found.unchanged_since


@pytest.mark.parametrize("change", ["a new week", "a setting", "a champion", "a damaged record"])
def test_whatever_changes_is_compared_again(world, compared, change):
    weeks, triggers = [week_of_rows(i) for i in range(14)], {}
    if change == "a new week":
        weeks.append(week_of_rows(14))
    elif change == "a setting":
        triggers = {"effect_floor": 0.2}
    elif change == "a champion":
        world.crown(weeks[:13], fingerprint="g", instead_of="1")
    else:
        (world.root / "store/monitoring/demo/last.json").write_text("{")
    found, result, _ = world.detect(weeks, **triggers)
    assert len(compared) == 2
    assert found.unchanged_since is None
    assert "Nothing new" not in result.summary


def test_inputs_of_two_different_runs_are_refused(world):
    with pytest.raises(PerennialError, match="another snapshot"):
        world.detect([week_of_rows(0)], digest="0" * 64)


@pytest.mark.parametrize("name", ["reference.json", "model.safetensors"])
def test_a_damaged_champion_is_named(world, name):
    weeks = [week_of_rows(i) for i in range(14)]
    world.crown(weeks[:12])
    (world.root / "store/champion" / name).write_bytes(b"{")
    with pytest.raises(DamagedModelError, match=f"demo version 1 is damaged: {name}"):
        world.detect(weeks)


def test_a_champion_whose_code_raises_is_named(world, monkeypatch):
    weeks = [week_of_rows(i) for i in range(14)]
    world.crown(weeks[:12])

    def fail(*_):
        raise KeyError("embedding")

    monkeypatch.setattr(TabularRegression, "encode", fail)
    with pytest.raises(PerennialError, match="demo version 1 cannot be scored") as stopped:
        world.detect(weeks)
    assert stopped.value.evidence == "KeyError: 'embedding'"


def test_a_deleted_alias_is_not_taken_for_no_champion(world):
    weeks = [week_of_rows(i) for i in range(13)]
    world.crown(weeks[:12])
    client = open_mlflow(Environment.read())
    client.delete_registered_model_alias("demo", "champion")
    with pytest.raises(UnclearChampionError, match="demo version 1 is the recorded champion, but"):
        world.detect(weeks)
