"""`[model.ensemble]` resolves to the last champions, pinned, before anything is trained."""

from pathlib import Path
from urllib.parse import urlparse

import pytest

from perennial.contracts.data import ModelSection, Split
from perennial.contracts.errors import DamagedModelError, PerennialError
from perennial.contracts.initial import ChampionWeights, EnsembleSection
from perennial.contracts.initial_model import Champions
from perennial.data.dataset import Dataset
from perennial.engine.config.distillation import Distillation
from perennial.engine.export import load_model
from perennial.engine.initial_weights import load_initial_weights
from perennial.engine.task import load_task
from perennial.engine.teachers import load_teachers, load_version
from perennial.registry.earlier_versions import resolve_champions, resolve_teachers
from perennial.registry.initial import find_seen_test_rows, resolve_initial
from perennial.registry.model_registry import open_registry
from registered_versions import NAME
from small_models import GOOD, NOISY, OPTIONS, TASK, linear_model, stream, write_snapshot

MIRRORED = (2.0, -2.0)
"""As good as `NOISY`, with the opposite noise: their mean is better than each."""


def model(champions=2, task=TASK) -> ModelSection:
    ensemble = EnsembleSection(champions=champions)
    return ModelSection(name=NAME, task=task, options=OPTIONS, ensemble=ensemble)


@pytest.fixture
def resolve(environment, tmp_path):
    def run(section=None, **split):
        folder = tmp_path / f"newer-{len(list(tmp_path.glob('newer-*')))}"
        return resolve_champions(
            section or model(), write_snapshot(folder, stream(days=95), **split), environment
        )

    return run


def versions_of(found: Champions) -> list[str]:
    return [each.origin.version for each in found.members]


def test_without_ensemble_nothing_is_asked(environment, tmp_path):
    plain = ModelSection(name=NAME, task=TASK)
    snapshot = write_snapshot(tmp_path / "data", stream())
    assert resolve_champions(plain, snapshot, environment) is None


def test_the_last_champions_are_pinned_the_latest_first(resolve, register):
    assert resolve().members == ()  # before there is one
    register(GOOD)
    register(NOISY, "1", seed=8)
    register(MIRRORED, "2", seed=9)
    register(GOOD, seed=10, promoted=False)  # never was champion
    found = resolve()
    assert versions_of(found) == ["3", "2"]
    assert versions_of(resolve(model(9))) == ["3", "2", "1"]
    assert Champions.from_json(found.to_json()) == found


def test_a_version_that_was_rolled_back_is_left_out(resolve, register, perennial):
    register(GOOD)
    register(NOISY, "1", seed=8)
    assert perennial("rollback", NAME, "--reason", "clicks fell")[0] == 0
    found = resolve()
    assert versions_of(found) == ["1"]
    assert found.left_out == ("version 2 was rolled back",)


def test_a_version_of_another_split_rule_is_left_out(resolve, register):
    """Validation rows may be rows that it was trained on."""
    register(GOOD)
    found = resolve(test_fraction=0.4)
    assert found.members == ()
    assert found.left_out == ("version 1 was trained under another split rule",)


def test_a_task_without_predictions_is_refused_by_name(resolve, register):
    register(GOOD)
    task = "perennial.tasks.language_modeling:CausalLanguageModel"
    with pytest.raises(PerennialError, match="whose kind is statistic"):
        resolve(model(task=task))


@pytest.fixture
def with_ensemble(resolve, register, environment, tmp_path):
    """A registry whose second version is an ensemble of its own training and of version 1."""
    register(MIRRORED)
    register(NOISY, "1", seed=8, among=resolve())
    version = open_registry(environment).version_by_alias(NAME, "champion")
    assert version.version == "2"
    return write_snapshot(tmp_path / "later", stream(days=100))


def test_an_ensemble_is_continued_by_what_was_trained_for_it(
    with_ensemble, resolve, environment, tmp_path
):
    """Else each champion would hold all champions before it."""
    found = resolve()
    assert versions_of(found) == ["2", "1"]
    first = load_version(found.members[0])
    expected = linear_model(with_ensemble, NOISY)[1].state_dict()
    assert first.model.state_dict().keys() == expected.keys()
    assert first.model.output.weight.tolist() == expected["output.weight"].tolist()
    # A warm start likewise.
    section = model().model_copy(update={"initial": ChampionWeights(source="champion")})
    initial = resolve_initial(section, environment)
    task, student = linear_model(with_ensemble, GOOD)
    load_initial_weights(student, task, initial)
    assert student.output.weight.tolist() == expected["output.weight"].tolist()


def test_an_ensemble_teaches_as_a_whole(with_ensemble, environment, tmp_path):
    """Distillation of several models into one."""
    teachers = resolve_teachers(model(), Distillation(teachers=("@champion",)), environment)
    task, _ = linear_model(with_ensemble, GOOD)
    rows = Dataset(with_ensemble).scan(Split.TRAIN).head(50).collect()
    (teacher,) = load_teachers(teachers.members, task, rows)
    registry = open_registry(environment)
    version = registry.version_by_alias(NAME, "champion")
    own, whole = load_model(registry.download(version, tmp_path / "download"))
    output = whole(**{n: t for n, t in own.encode(rows).items() if n != "label"})
    assert teacher.answer(rows) == pytest.approx(own.predict(output).detach().numpy(), abs=1e-6)


def test_members_of_an_ensemble_are_among_what_it_has_seen(
    with_ensemble, resolve, tmp_path, perennial
):
    """Its record names them by digest, in `explain` and on the card."""
    shifted = write_snapshot(tmp_path / "shifted", stream(days=100), test_fraction=0.6)
    origins = [each.origin for each in resolve().members]
    seen = find_seen_test_rows(None, Dataset(shifted), members=origins)
    assert seen.count > 0
    assert seen.lines[0].startswith("the member version 2 was trained or selected on")
    code, explained = perennial("explain", f"{NAME}@2")
    digest = origins[1].files["model.safetensors"][:12]
    assert code == 0
    assert f"champion version 1, SHA-256 {digest}" in explained
    assert "ensemble with" in explained
    card = next(Path(tmp_path).glob("package-challenger-*8-*/model_card.md")).read_text()
    assert f"| ensemble of | this training; champion version 1, SHA-256 {digest}" in card


def test_an_altered_file_of_an_ensemble_is_refused(with_ensemble, resolve, environment, tmp_path):

    version = open_registry(environment).version_by_alias(NAME, "champion")
    file = Path(urlparse(version.source).path) / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DamagedModelError):
        resolve()


def test_a_rolled_back_ensemble_restores_the_version_before(with_ensemble, perennial, environment):
    assert perennial("rollback", NAME, "--reason", "too slow")[0] == 0
    assert open_registry(environment).version_by_alias(NAME, "champion").version == "1"


def test_an_ensemble_loads_from_its_record_alone(with_ensemble, environment, tmp_path):
    """Task, options and state name all members; nothing else is fetched."""
    registry = open_registry(environment)
    folder = registry.download(registry.version_by_alias(NAME, "champion"), tmp_path / "copy")
    task, whole = load_model(folder)
    assert [each.title for each in task.members] == ["this training", "version 1"]
    assert len({each.weights_sha256 for each in task.members}) == 2
    again = load_task(
        "perennial.tasks.ensemble:Ensemble", task.options.model_dump(mode="json"), task.columns
    )
    again.load_state(task.state())
    assert again.build_model().state_dict().keys() == whole.state_dict().keys()
