"""The step: outputs on success and on failure, and the message that a person reads."""

import struct
import zlib

import numpy as np
import pytest

from components.check_skeleton.config import CheckSkeletonConfig, SkeletonSection
from components.check_skeleton.input_preview import png
from components.check_skeleton.step import check_skeleton_step
from components.contracts.data import ModelSection
from components.contracts.errors import BadTaskError
from components.contracts.skeleton import SkeletonReport

BROKEN = """
from components.tasks.tabular import TabularClassification

class Broken(TabularClassification):
    def predict(self, output):
        return output.squeeze(-1) * 50
"""


@pytest.fixture
def run(datasets, tmp_path, monkeypatch):
    monkeypatch.setenv("PERENNIAL_STORE_URI", str(tmp_path / "store"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    (tmp_path / "broken_task.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    datasets("binary").snapshot.write(tmp_path / "snapshot")

    def run(task: str, **settings):
        config = CheckSkeletonConfig(
            model=ModelSection(name="model", task=task),
            skeleton=SkeletonSection(sample_rows=1024, batch_rows=64, **settings),
        )
        outputs = {name: str(tmp_path / name) for name in ("skeleton", "report", "metrics")}
        return check_skeleton_step(
            config=config.to_json(), snapshot=str(tmp_path / "snapshot"), **outputs
        )

    return run


def test_healthy_task_gets_a_report_with_baselines(run, tmp_path):
    result = run("components.tasks.tabular:TabularClassification")
    report = SkeletonReport.read(tmp_path / "skeleton")
    assert result.metrics == {"passed": 19.0, "warned": 0.0, "failed": 0.0, "skipped": 3.0}
    assert result.summary == "19 of 22 checks passed"
    assert set(report.baselines) == {"constant", "linear"}
    page = (tmp_path / "report").read_text()
    order = [page.index(part) for part in ("Examples decoded", "overfit_one_batch", "Baselines")]
    assert order == sorted(order)
    assert page.count("<figure>") == 2


def test_failure_stops_the_run_after_everything_is_written(run, tmp_path):
    with pytest.raises(BadTaskError) as raised:
        run("broken_task:Broken")
    text = str(raised.value)
    assert "predictions: probabilities lie in [" in text
    assert "skeleton.waivers" in text
    report = SkeletonReport.read(tmp_path / "skeleton")
    assert "predictions" in {result.check for result in report.failures}
    assert report.baselines == {}
    page = (tmp_path / "report").read_text()
    assert "Failed" in page
    # Worst first: the failure stands above every check that passed.
    assert page.index("probabilities lie in") < page.index("encode alike together")


def test_waived_failure_lets_the_run_go_on_and_stays_visible(run, tmp_path):
    reason = "scores are calibrated downstream"
    failing = ("predictions", "metric_direction", "state_round_trip")
    result = run("broken_task:Broken", waivers=dict.fromkeys(failing, reason))
    assert "waived predictions" in result.summary
    assert result.metrics["failed"] >= 1
    assert reason in (tmp_path / "report").read_text()


def test_picture_file_holds_the_pixels():
    image = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    content = png(image)
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", content[16:24]) == (2, 4)
    start = content.index(b"IDAT") + 4
    (length,) = struct.unpack(">I", content[start - 8 : start - 4])
    lines = zlib.decompress(content[start : start + length])
    pixels = np.frombuffer(lines, dtype=np.uint8).reshape(4, 7)
    assert (pixels[:, 0] == 0).all()
    assert (pixels[:, 1:].reshape(4, 2, 3) == image).all()
