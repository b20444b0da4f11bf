"""`[model.initial]` resolves to pinned files in the store, or to an error before anything is trained."""

import json
from datetime import date
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file

from adapter_versions import write_adapter
from perennial.clients.object_store import sha256_of_file
from perennial.contracts.artifact import hand_on
from perennial.contracts.data import ModelSection
from perennial.contracts.errors import DamagedModelError, PerennialError
from perennial.contracts.initial_model import InitialModel
from perennial.contracts.training import Challenger
from perennial.data.dataset import Dataset
from perennial.engine.export import load_model
from perennial.engine.initial_weights import read_weights
from perennial.registry.initial import find_seen_test_rows, resolve_initial
from perennial.registry.model_registry import open_registry
from perennial.training_jobs.config import TrainModelConfig
from perennial.training_jobs.identity import training_job
from registered_versions import NAME
from small_models import GOOD, TASK, stream, write_snapshot

REVISION = "0123456789abcdef0123456789abcdef01234567"
CARD = "---\nlicense: apache-2.0\nlanguage: en\n---\n# A model\n"


def asked(**initial) -> ModelSection:
    return ModelSection.model_validate(
        {"name": NAME, "task": TASK, "initial": initial}, strict=False
    )


@pytest.fixture
def weights(tmp_path) -> Path:
    file = tmp_path / "weights" / "base.safetensors"
    file.parent.mkdir()
    save_file({"layer": torch.arange(3.0)}, file)
    return file


def hub(tmp_path, files: dict, layout="snapshots/") -> str:
    """A snapshot of a repository; a content is tensors, JSON or text."""
    folder = tmp_path / "hub" / f"{layout}{REVISION}"
    folder.mkdir(parents=True)
    for name, content in files.items():
        if name.endswith(".safetensors"):
            save_file(content, folder / name)
        else:
            (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return str(tmp_path / "hub")


def test_scratch_needs_nothing(environment):
    assert resolve_initial(asked(), environment) is None


def test_a_file_is_pinned_in_the_store_under_its_digest(environment, weights):
    digest = sha256_of_file(weights)
    found = resolve_initial(
        asked(source="safetensors", uri=str(weights), sha256=digest, license="mit"), environment
    )
    weights.unlink()  # later attempts, and versions that name it, need the store alone
    assert torch.equal(read_weights(found)["layer"], torch.arange(3.0))
    assert found.origin.files == {"base.safetensors": digest}
    assert found.origin.describe().endswith(f"SHA-256 {digest[:12]}, licence mit")


@pytest.mark.parametrize("layout", ["snapshots/", ""])
def test_a_snapshot_of_several_files_is_pinned_with_the_licence_of_its_card(
    environment, tmp_path, layout
):
    files = {"a.safetensors": {"one": torch.ones(1)}, "b.safetensors": {"two": torch.ones(2)}}
    index = {"weight_map": {"one": "a.safetensors", "two": "b.safetensors"}}
    more = {"model.safetensors.index.json": index, "README.md": CARD, "unrelated.bin": ""}
    uri = hub(tmp_path, files | more, layout)
    found = resolve_initial(
        asked(source="huggingface", uri=uri, revision=REVISION, require_license=True), environment
    )
    assert sorted(read_weights(found)) == ["one", "two"]
    assert (found.origin.license, found.origin.revision) == ("apache-2.0", REVISION)


def test_the_place_of_weights_is_not_part_of_a_trainings_identity(environment, weights):
    section = asked(source="safetensors", uri=str(weights), sha256=sha256_of_file(weights))
    found = resolve_initial(section, environment)
    moved = found.model_copy(
        update={"store_uri": "s3://other", "origin": found.origin.model_copy(update={"uri": "x"})}
    )
    other = found.model_copy(update={"new": ("head.*",)})
    assert moved.identity() == found.identity() != other.identity()


def test_a_champion_is_pinned_with_its_task_and_the_rows_that_it_has_seen(environment, register):
    assert resolve_initial(asked(source="champion"), environment) is None
    register(GOOD)
    found = resolve_initial(asked(source="champion"), environment)
    assert found.origin.version == "1"
    assert found.former.task == TASK
    assert set(read_weights(found)) == {"output.weight", "output.bias"}
    (seen,) = found.origin.seen
    assert seen.files == ()
    assert seen.time_max is not None
    assert InitialModel.from_json(found.to_json()) == found


def test_a_champion_that_is_an_adapter_is_started_from_with_its_base(
    environment, register, tmp_path
):
    register(GOOD, write=write_adapter)
    found = resolve_initial(asked(source="champion"), environment)
    registry = open_registry(environment)
    folder = registry.download(registry.version_by_alias(NAME, "champion"), tmp_path / "files")
    _, model = load_model(folder)
    stored, whole = read_weights(found)["output.weight"], model.output.weight
    product = model.output.get_delta_weight("default")
    assert torch.equal(stored, whole + product)
    assert found.origin.files != Challenger.read(folder).base.origin.files


def test_a_champion_has_seen_no_test_row_of_newer_data_under_the_same_split_rule(
    environment, register, tmp_path
):
    """The default does not leak: no row ever changes its split."""
    register(GOOD, days=60)
    found = resolve_initial(asked(source="champion"), environment)
    newer = Dataset(write_snapshot(tmp_path / "newer", stream(days=90)))
    assert find_seen_test_rows(found, newer).lines == ()


def test_another_split_rule_makes_rows_of_the_champions_time_leak(environment, register, tmp_path):
    register(GOOD, days=60)
    found = resolve_initial(asked(source="champion"), environment)
    shifted = write_snapshot(
        tmp_path / "newer", stream(days=90), validation_fraction=0.1, test_fraction=0.6
    )
    seen = find_seen_test_rows(found, Dataset(shifted))
    assert 0 < seen.count < shifted.split_rows["test"]
    assert seen.lines[0].startswith(
        f"the initial weights were trained or selected on {seen.count:,} of"
    )


@pytest.mark.parametrize(
    ("until", "line"),
    [
        (None, "it is not known what the initial weights were trained on"),
        (date(2025, 2, 1), "the initial weights were trained until 2025-02-01, and "),
        (date(2024, 12, 31), ""),
    ],
)
def test_foreign_weights_are_judged_by_the_day_that_the_contract_names(
    environment, weights, tmp_path, until, line
):
    section = asked(
        source="safetensors", uri=str(weights), sha256=sha256_of_file(weights), trained_until=until
    )
    dataset = Dataset(write_snapshot(tmp_path / "data", stream()))
    seen = find_seen_test_rows(resolve_initial(section, environment), dataset)
    assert [each[: len(line)] for each in seen.lines] == ([line] if line else [])
    assert seen.count == 0


def test_a_file_that_is_not_the_pinned_one_is_refused(environment, weights):
    section = asked(source="safetensors", uri=str(weights), sha256="0" * 64)
    with pytest.raises(DamagedModelError, match="is not the pinned file"):
        resolve_initial(section, environment)


def test_an_altered_file_of_the_hubs_cache_is_refused(environment, tmp_path):
    uri = hub(tmp_path, {"model.safetensors": {"one": torch.ones(1)}})
    link = tmp_path / "hub/snapshots" / REVISION / "model.safetensors"
    blob = tmp_path / "hub" / ("0" * 64)
    link.rename(blob)
    link.symlink_to(blob)
    with pytest.raises(DamagedModelError, match="is not the file that was downloaded"):
        resolve_initial(asked(source="huggingface", uri=uri, revision=REVISION), environment)


@pytest.mark.parametrize(
    ("files", "options", "error"),
    [
        ({"pytorch_model.bin": "x"}, {}, "pytorch_model.bin is pickled"),
        ({"config.json": {}}, {}, "there is no .*model.safetensors"),
        ({}, {}, f"there is no snapshot {REVISION}"),
        ({"model.safetensors": {"one": torch.ones(1)}}, {"require_license": True}, "no recorded licence"),
        (
            {"model.safetensors": {"one": torch.ones(1)}, "README.md": CARD},
            {"license": "mit"},
            "contradicts the model card",
        ),
    ],
)  # fmt: skip
def test_a_snapshot_that_cannot_be_used_is_refused(environment, tmp_path, files, options, error):
    uri = hub(tmp_path, files)
    with pytest.raises(PerennialError, match=error):
        resolve_initial(
            asked(source="huggingface", uri=uri, revision=REVISION, **options), environment
        )


@pytest.mark.parametrize(
    "initial",
    [
        {"source": "huggingface", "uri": "hub", "revision": "main"},
        {"source": "huggingface", "uri": "hub"},
        {"source": "safetensors", "uri": "base.safetensors"},
        {"source": "safetensors", "uri": "base.safetensors", "sha256": "0" * 64, "revision": "a"},
        {"source": "champion", "license": "mit"},
        {"source": "checkpoint"},
    ],
)
def test_what_is_not_pinned_or_not_known_is_refused_by_the_contract(initial):
    with pytest.raises(ValidationError):
        asked(**initial)


def test_a_pickled_file_is_refused_though_its_digest_is_known(environment, tmp_path):
    file = tmp_path / "model.pt"
    torch.save({"one": torch.ones(1)}, file)
    section = asked(source="safetensors", uri=str(file), sha256=sha256_of_file(file))
    with pytest.raises(PerennialError, match="is pickled, and loading a pickle can run any code"):
        resolve_initial(section, environment)


def test_what_was_pinned_is_handed_on_to_the_training_and_enters_its_fingerprint(
    environment, register, tmp_path
):
    register(GOOD)
    snapshot = write_snapshot(tmp_path / "newer", stream())
    pinned = resolve_initial(asked(source="champion"), environment)
    settings = TrainModelConfig(model=asked(source="champion"))

    def job_of(name, **more):
        hand_on(tmp_path / name, snapshot, more=more)
        return training_job(settings, tmp_path / name, environment)

    scratch, warm = job_of("scratch"), job_of("warm", initial=pinned.model_dump(mode="json"))
    assert (scratch.initial, warm.initial) == (None, pinned)
    assert scratch.fingerprint != warm.fingerprint
    assert "initial" not in scratch.contract  # those of before stay the same
    assert warm.contract["initial"]["files"] == list(pinned.origin.files.values())
