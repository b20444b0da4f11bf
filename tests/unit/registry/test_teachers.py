"""`[training.distillation]` resolves to pinned versions, or to an error before anything is trained."""

from pathlib import Path
from urllib.parse import urlparse

import pytest
from pydantic import ValidationError

from perennial.contracts.artifact import hand_on
from perennial.contracts.data import ModelSection
from perennial.contracts.errors import DamagedModelError, PerennialError
from perennial.contracts.initial_model import Teachers
from perennial.contracts.lineage import LINEAGE_FILE, Lineage
from perennial.data.dataset import Dataset
from perennial.engine.config.distillation import Distillation
from perennial.engine.config.training import TrainingSection
from perennial.engine.initial_weights import read_weights
from perennial.registry.earlier_versions import resolve_teachers
from perennial.registry.initial import find_seen_test_rows
from perennial.registry.model_registry import open_registry
from perennial.training_jobs.config import TrainModelConfig
from perennial.training_jobs.identity import training_job
from registered_versions import NAME
from small_models import GOOD, NOISY, OPTIONS, TASK, stream, write_snapshot

MODEL = ModelSection(name=NAME, task=TASK, options=OPTIONS)


@pytest.fixture
def resolve(environment):
    """The teachers of these names, of a training of the model."""

    def run(*names):
        return resolve_teachers(MODEL, Distillation(teachers=names), environment)

    return run


def test_without_distillation_nothing_is_asked(environment):
    assert resolve_teachers(MODEL, None, environment) is None


def test_versions_are_pinned_with_their_tasks(resolve, register):
    register(GOOD)
    register(NOISY, "1")
    found = resolve(f"{NAME}@1", "@champion")
    assert [each.origin.version for each in found.members] == ["1", "2"]
    for member in found.members:
        assert set(read_weights(member)) == {"output.weight", "output.bias"}
        assert member.former.task == TASK
        assert member.origin.describe().startswith(
            f"{NAME} version {member.origin.version}, SHA-256"
        )
    assert Teachers.from_json(found.to_json()) == found


def test_a_version_that_is_named_in_two_ways_counts_once(resolve, register):
    register(GOOD)
    assert len(resolve("@1", "@champion").members) == 1


def test_the_own_champion_is_left_out_while_there_is_none(resolve):
    assert resolve("@champion").members == ()


@pytest.mark.parametrize("name", ["@7", "others@champion", "others@1"])
def test_a_version_that_does_not_exist_is_refused(resolve, register, name):
    register(GOOD)
    with pytest.raises(PerennialError, match=r"there is no (clicks@7|others@)") as error:
        resolve(name)
    assert "versions of" in error.value.evidence


def test_a_damaged_version_is_refused(resolve, register, environment):
    register(GOOD)
    version = open_registry(environment).version_by_alias(NAME, "champion")
    file = Path(urlparse(version.source).path) / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DamagedModelError):
        resolve("@1")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"teachers": []}, "at least 1 item"),
        ({"teachers": ["big"]}, "should match pattern"),
        ({"teachers": ["big@latest"]}, "should match pattern"),
        ({"teachers": ["@1", "@1"]}, "named 2 times"),
        ({"teachers": ["@1"], "weight": 0.0}, "greater than 0"),
        ({"teachers": ["@1"], "temperature": 0.5}, "greater than or equal to 1"),
    ],
)
def test_what_is_not_a_version_is_refused_by_the_contract(values, reason):
    with pytest.raises(ValidationError, match=reason):
        TrainingSection.model_validate({"distillation": values}, strict=False)


def test_teachers_have_seen_what_their_own_origins_have_seen(
    resolve, register, environment, tmp_path
):
    """A student of a student: the rows of the first teacher are known, whatever rule it had."""
    register(GOOD, days=60)
    first = resolve("@1")
    lineage = _lineage(environment, "1", first)
    assert [each.version for each in lineage.teachers] == ["1"]
    shifted = write_snapshot(
        tmp_path / "newer", stream(days=90), validation_fraction=0.1, test_fraction=0.6
    )
    seen = find_seen_test_rows(None, Dataset(shifted), lineage.teachers)
    assert seen.count > 0
    assert seen.lines[0].startswith(f"the teacher {NAME} version 1 was trained or selected on")
    same = write_snapshot(tmp_path / "same", stream(days=90))
    assert find_seen_test_rows(None, Dataset(same), lineage.teachers).lines == ()


def _lineage(environment, version, teachers):
    """The lineage of a training that learned from teachers."""
    registry = open_registry(environment)
    found = next(each for each in registry.versions(NAME) if each.version == version)
    known = Lineage.from_json(registry.read_files(found, {LINEAGE_FILE})[LINEAGE_FILE])
    return known.model_copy(update={"teachers": teachers.origins})


def test_what_was_pinned_enters_fingerprint_and_job(resolve, register, environment, tmp_path):
    register(GOOD)
    register(NOISY, "1")
    snapshot = write_snapshot(tmp_path / "data", stream())

    def job_of(folder, *names, found=None):
        taught = found if found is not None else resolve(*names)
        hand_on(tmp_path / folder, snapshot, more={"teachers": taught.model_dump(mode="json")})
        distillation = Distillation(teachers=names)
        settings = TrainModelConfig(
            model=MODEL, training=TrainingSection(distillation=distillation)
        )
        return training_job(settings, tmp_path / folder, environment)

    one, other = job_of("one", "@1"), job_of("other", "@1", "@2")
    assert one.teachers == resolve("@1")
    assert one.contract["teachers"] == resolve("@1").identity()
    assert one.fingerprint != other.fingerprint
    # The champion of another day is another training.
    before = job_of("before", "@champion")
    register(GOOD, "2", seed=8)
    assert job_of("after", "@champion").fingerprint != before.fingerprint
    with pytest.raises(PerennialError, match="were not resolved"):
        job_of("lost", "@1", found=resolve("@2"))
    plain = TrainModelConfig(model=MODEL)
    assert "teachers" not in training_job(plain, tmp_path / "one", environment).contract
