"""The page shows how true the probabilities of both models are, side by side."""

import numpy as np
import polars as pl
import pytest

from perennial.contracts.data import TaskColumns
from perennial.engine.evaluation.resampling import Blocks
from perennial.engine.evaluation.scoring import Scored
from perennial.engine.task import load_task
from perennial.gate.champion import Champion
from perennial.gate.comparison import Contender, MeasuredBaselines
from perennial.gate.config import GateSection
from perennial.gate.judgement import JudgedRows, reach_verdict
from perennial.gate.report import write_report

ROWS, CLASSES = 6000, 4


@pytest.fixture(scope="module")
def task():
    columns = TaskColumns(label="label", features={"x": "Float64"})
    made = load_task("perennial.tasks.tabular:TabularClassification", {}, columns)
    names = [str(number) for number in range(CLASSES)]
    shares = [1 / CLASSES] * CLASSES
    state = {"numeric": {}, "categories": {}, "classes": names, "class_shares": shares}
    made.load_state({**state, "target_mean": 0.0, "target_scale": 1.0, "rows": 1})
    assert made.kind == "multiclass"
    return made


@pytest.fixture(scope="module")
def rivals(task):
    """Labels drawn by the challenger's own probabilities; the champion is three times as sure."""
    random = np.random.default_rng(0)
    logits = random.normal(size=(ROWS, CLASSES))
    honest, sure = (_shares(logits * scale) for scale in (1.0, 3.0))
    labels = (random.random((ROWS, 1)) > honest.cumsum(axis=1)).sum(axis=1).astype(float)
    ones, rows = np.ones(ROWS), pl.DataFrame({"label": labels})
    return [Contender(task, Scored(ones, each, labels, ones, rows)) for each in (honest, sure)]


def _shares(logits):
    shares = np.exp(logits)
    return shares / shares.sum(axis=1, keepdims=True)


def judged(challenger, champion):
    rows = JudgedRows(Blocks(np.arange(ROWS) % 20, 20, "group"))
    return reach_verdict(
        GateSection(metric="log_loss", must_beat=()), challenger, champion, rows,
        weights_sha256="", baselines=MeasuredBaselines(), performance=(),
    )  # fmt: skip


def by_hand(contender):
    """The expected calibration error of Guo et al. (2017), equation 3, bin by bin."""
    predictions, labels = contender.scored.predictions, contender.scored.labels
    sure, right = predictions.max(axis=1), predictions.argmax(axis=1) == labels
    total = 0.0
    for number in range(15):
        inside = (sure >= number / 15) & (sure < (number + 1) / 15)
        if inside.any():
            total += inside.sum() / len(labels) * abs(right[inside].mean() - sure[inside].mean())
    return total


def test_calibration_of_both_models_uses_their_most_probable_class(rivals):
    challenger, champion = rivals
    verdict = judged(challenger, Champion(version="1", contender=champion))
    errors = verdict.expected_calibration_errors
    assert errors["challenger"] == pytest.approx(by_hand(challenger), rel=1e-9)
    assert errors["champion"] == pytest.approx(by_hand(champion), rel=1e-9)
    assert errors["challenger"] < 0.03
    assert errors["champion"] > 0.2
    assert len(verdict.calibration) == len(verdict.champion_calibration) == 10
    honest, sure = verdict.calibration[-1], verdict.champion_calibration[-1]
    assert abs(honest.predicted - honest.observed) < 0.05
    assert sure.predicted - sure.observed > 0.15, "overconfident where it is surest"


def test_the_page_has_a_curve_and_the_error_of_each(rivals, task, tmp_path):
    challenger, champion = rivals
    verdict = judged(challenger, Champion(version="1", contender=champion))
    page = _page(verdict, task, tmp_path)
    _, _, calibration = page.partition("Calibration</h2>")
    assert calibration.count("<svg") == 2
    figures = calibration[calibration.index('<div class="figures">') :]
    assert (
        figures.index("challenger")
        < figures.index("</figure>\n<figure>")
        < figures.rindex("champion")
    ), "in one group, which stands side by side"
    for name in ("challenger", "champion"):
        assert f">{name}</td>" in calibration
        assert f"{verdict.expected_calibration_errors[name]:.4f}</td>" in calibration
    assert "share of right answers" in calibration


@pytest.mark.parametrize(
    "absent", [Champion(), Champion(version="1", failure="its files are damaged")],
    ids=["no champion", "a champion that does not load"],
)  # fmt: skip
def test_a_challenger_alone_has_its_own_curve(rivals, task, tmp_path, absent):
    verdict = judged(rivals[0], absent)
    assert verdict.expected_calibration_errors.keys() == {"challenger"}
    assert verdict.champion_calibration == ()
    _, _, calibration = _page(verdict, task, tmp_path).partition("Calibration</h2>")
    assert calibration.count("<svg") == 1
    assert "champion" not in calibration


def _page(verdict, task, folder):
    gate = GateSection(metric="log_loss")
    write_report(
        folder / "page.html", verdict=verdict, gate=gate, task=task, unit="group", scored={}
    )
    return (folder / "page.html").read_text()
