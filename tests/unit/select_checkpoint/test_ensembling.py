"""The mean with the last champions becomes the challenger where it is clearly better."""

import shutil

import numpy as np
import pytest

from perennial.clients.pyfunc_flavor import CODE_FOLDER
from perennial.contracts.data import ModelSection, Split
from perennial.contracts.errors import PerennialError
from perennial.contracts.initial import EnsembleSection
from perennial.contracts.initial_model import Champions
from perennial.contracts.training import ENSEMBLE, Challenger
from perennial.data.dataset import Dataset
from perennial.engine.evaluation.scoring import score_split
from perennial.engine.export import load_model
from perennial.gate.serving import serve_in_clean_process
from perennial.select_checkpoint.config import SelectCheckpointConfig, SelectionSection
from perennial.select_checkpoint.step import select_checkpoint_step
from small_models import GOOD, NOISY, OPTIONS, TASK, linear_model, stream, write_snapshot
from taught import pinned

MIRRORED = (2.0, -2.0)
"""As good as `NOISY`, with the opposite noise: their mean is better than each."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ensembling")
    snapshot = write_snapshot(folder / "data", stream())
    snapshot.write(folder / "snapshot")
    return folder, snapshot


@pytest.fixture
def selected(environment, data, leave_training, tmp_path):
    """Selects among one checkpoint and its mean with champions of such weights."""
    folder, snapshot = data

    def run(own, *champions, more=(), resolved=True, limits=None, left_out=(), **rule):
        task, model = linear_model(snapshot, own)
        shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)
        leave_training(TASK, task, {10: (model.state_dict(), None)})
        if resolved:
            members = tuple(
                champion(tmp_path, snapshot, each, n) for n, each in enumerate(champions)
            )
            Champions(members=(*members, *more), left_out=left_out).write(tmp_path / "training")
        section = ModelSection(
            name="clicks", task=TASK, options=OPTIONS, ensemble=EnsembleSection(**rule)
        )
        config = SelectCheckpointConfig(
            model=section, selection=SelectionSection(limits=limits or {})
        )
        places = {
            name: str(tmp_path / name) for name in ("training", "challenger", "selection", "report")
        }
        result = select_checkpoint_step(
            contract=config.to_json(), snapshot=str(folder / "snapshot"), **places
        )
        return result, Challenger.read(tmp_path / "challenger")

    return run


def champion(folder, snapshot, weights, number, classes=None):
    """A pinned champion with such weights."""
    task, model = linear_model(snapshot, weights)
    if classes is not None:
        task.load_state(task.state() | {"classes": classes})
    told = {"source": "champion", "version": str(number + 1)}
    return pinned(folder / "store", task, model.state_dict(), number + 1, **told)


def test_a_clearly_better_mean_becomes_the_challenger(selected, data, tmp_path):
    result, challenger = selected(NOISY, MIRRORED)
    assert challenger.task == ENSEMBLE
    assert [each.version for each in challenger.members] == ["1"]
    assert "the mean with the last champions: roc_auc" in challenger.reason
    task, model = load_model(tmp_path / "challenger")
    scored = score_split(task, model, Dataset(data[1]), Split.VALIDATION)
    figure = scored.metric(task, "roc_auc")
    assert figure == result.metrics["validation/ensemble_roc_auc"]
    assert figure > result.metrics["validation/chosen_roc_auc"] + 0.05
    page = (tmp_path / "report").read_text()
    assert "mean with version 1" in page
    assert "weights, MB" in page


def test_it_is_served_by_its_own_code_in_a_clean_process(selected, data, tmp_path):
    selected(NOISY, MIRRORED)
    folder, dataset = tmp_path / "challenger", Dataset(data[1])
    code = folder / CODE_FOLDER / "perennial" / "tasks"
    assert {"ensemble.py", "tabular.py"} <= {file.name for file in code.iterdir()}
    task, model = load_model(folder)
    scored = score_split(task, model, dataset, Split.TEST)
    served = serve_in_clean_process(folder, task, dataset, scored.predictions)
    assert served.failure == ""
    singles = [linear_model(data[1], weights) for weights in (NOISY, MIRRORED)]
    expected = [score_split(*each, dataset, Split.TEST).predictions for each in singles]
    assert scored.predictions == pytest.approx(np.mean(expected, axis=0), abs=1e-6)


@pytest.mark.parametrize(
    ("weights", "rule", "reason"),
    [
        ([GOOD], {}, "there is no champion to average with"),
        ([GOOD, NOISY], {}, "worse by 0.0"),
        ([NOISY, NOISY], {}, "not above 2 standard errors"),
        ([NOISY, MIRRORED], {"gain_standard_errors": 10.0}, "not above 10 standard errors"),
    ],
)
def test_otherwise_the_checkpoint_is_the_challenger(selected, tmp_path, weights, rule, reason):
    result, challenger = selected(*weights, **rule)
    assert (challenger.task, challenger.members) == (TASK, ())
    assert reason in result.summary
    assert reason in (tmp_path / "report").read_text()
    assert challenger.champions is not None  # for those who reproduce the choice


def test_an_ensemble_outside_a_limit_is_not_chosen(selected):
    """Limits hold as for checkpoints: a champion that is too sure orders better, and costs loss."""
    limits = {"log_loss": 0.6}
    result, challenger = selected((3.0, 0.5), (6.0, 0.0), limits=limits, gain_standard_errors=0.0)
    assert challenger.task == TASK
    assert "because its log_loss (" in result.summary


def test_a_champion_that_does_not_fit_is_left_out_by_name(selected, data, tmp_path):
    other = champion(tmp_path, data[1], NOISY, 4, classes=["0", "unheard"])
    _, challenger = selected(
        NOISY, MIRRORED, more=(other,), left_out=("version 2 was rolled back",)
    )
    assert [each.version for each in challenger.members] == ["1"]
    page = (tmp_path / "report").read_text()
    assert "Left out: version 2 was rolled back." in page
    assert "Left out: version 5: the teacher" in page


def test_champions_that_no_step_has_resolved_are_an_error(selected):
    with pytest.raises(PerennialError, match=r"the champions for model.ensemble were not resolved"):
        selected(GOOD, resolved=False)
