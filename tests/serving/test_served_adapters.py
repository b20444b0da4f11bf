"""A version that is an adapter is served with the base that it names by digest, or not at all."""

import numpy as np
import pytest

from adapter_versions import ADAPTER, write_adapter
from perennial.contracts.data import Split
from perennial.contracts.errors import DamagedModelError
from perennial.contracts.lineage import Lineage
from perennial.data.dataset import Dataset
from perennial.engine.evaluation.scoring import score_split
from perennial.engine.export import load_model
from perennial.gate.serving import model_megabytes, serve_in_clean_process
from perennial.registry.model_registry import open_registry
from registered_versions import NAME
from small_models import GOOD, stream, write_challenger, write_snapshot


@pytest.fixture
def dataset(tmp_path):
    return Dataset(write_snapshot(tmp_path / "data", stream(days=30)))


def predictions(folder, dataset):
    return score_split(*load_model(folder), dataset, Split.TEST).predictions


@pytest.mark.full
def test_a_clean_process_fetches_the_base_and_predicts_what_the_evaluation_did(
    environment, dataset, tmp_path
):
    folder = tmp_path / "adapter"
    challenger = write_adapter(folder, dataset.snapshot, GOOD)
    task, _ = load_model(folder)
    served = serve_in_clean_process(folder, task, dataset, predictions(folder, dataset))
    assert served.failure == ""
    requirements = (folder / "requirements.txt").read_text()
    assert "peft==" in requirements
    (base,) = (tmp_path / "store" / "initial").glob("*.safetensors")
    assert base.stem in challenger.base.origin.files.values()
    # An adapter must not pass for a smaller model than its champion.
    assert model_megabytes(folder) > (base.stat().st_size + 1) / 1e6


def test_merged_and_unmerged_versions_predict_the_same(environment, dataset, tmp_path):
    write_adapter(tmp_path / "adapter", dataset.snapshot, GOOD)
    merged = ADAPTER.model_copy(update={"merge": True})
    write_adapter(tmp_path / "merged", dataset.snapshot, GOOD, adapter=merged)
    write_challenger(tmp_path / "whole", dataset.snapshot, GOOD)
    found = {name: predictions(tmp_path / name, dataset) for name in ("adapter", "merged", "whole")}
    for name in ("merged", "whole"):
        assert np.abs(found[name] - found["adapter"]).max() < 1e-5
    # It needs neither peft nor the store.
    assert "peft==" not in (tmp_path / "merged" / "requirements.txt").read_text()
    (base,) = (tmp_path / "store" / "initial").glob("*.safetensors")
    base.unlink()
    assert np.array_equal(predictions(tmp_path / "merged", dataset), found["merged"])


@pytest.mark.parametrize("damage", ["gone", "altered"])
def test_an_adapter_is_never_served_on_another_base(environment, dataset, tmp_path, damage):
    folder = tmp_path / "adapter"
    write_adapter(folder, dataset.snapshot, GOOD)
    (base,) = (tmp_path / "store" / "initial").glob("*.safetensors")
    if damage == "gone":
        base.unlink()
    else:
        content = bytearray(base.read_bytes())
        content[-1] ^= 1
        base.write_bytes(content)
    with pytest.raises(DamagedModelError, match=base.stem):
        load_model(folder)


def test_an_adapter_whose_base_is_not_named_is_refused(environment, dataset, tmp_path):
    made = write_adapter(tmp_path / "adapter", dataset.snapshot, GOOD)
    made.model_copy(update={"initial": None}).write(tmp_path / "adapter")
    with pytest.raises(DamagedModelError, match="names no base for its adapter"):
        load_model(tmp_path / "adapter")


def test_an_adapters_file_of_another_rank_is_refused(environment, dataset, tmp_path):
    folder = tmp_path / "adapter"
    made = write_adapter(folder, dataset.snapshot, GOOD)
    other = ADAPTER.model_copy(update={"targets": ("hidden",)})
    made.model_copy(update={"adapter": other}).write(folder)
    with pytest.raises(Exception, match="matches no module that can have an adapter"):
        load_model(folder)
    made.model_copy(update={"adapter": ADAPTER.model_copy(update={"rank": 2})}).write(folder)
    with pytest.raises(Exception, match="do not fit"):
        load_model(folder)


@pytest.mark.full
def test_a_registered_adapter_serves_in_a_clean_process(
    register, environment, ask, dataset, tmp_path
):
    """By the alias alone; the version holds the adapter, the store its base."""
    register(GOOD, write=write_adapter)
    registry = open_registry(environment)
    version = registry.version_by_alias(NAME, "champion")
    folder = registry.download(version, tmp_path / "files")
    answer = ask(
        f"models:/{NAME}@champion",
        {"raw": dataset.collect(dataset.scan(Split.TEST))},
        tracking_uri=environment.tracking_uri,
    )
    found = np.array(answer["raw"]["rows"])[:, 0]
    assert np.abs(found - predictions(folder, dataset)).max() <= 1e-6
    (base,) = (tmp_path / "store" / "initial").glob("*.safetensors")
    assert version.tags["perennial.base"] == base.stem[:12]
    assert f"SHA-256 {base.stem[:12]}" in (folder / "model_card.md").read_text()
    assert ADAPTER.describe() in (folder / "model_card.md").read_text()


@pytest.mark.full
def test_a_version_tells_its_base_by_digest_and_bits(register, environment, tmp_path):
    """Both, because the same file in other bits predicts otherwise."""

    def write(folder, *arguments):
        few = ADAPTER.model_copy(update={"base_bits": 4})
        made = write_adapter(folder, *arguments).model_copy(update={"adapter": few})
        made.write(folder)
        return made

    register(GOOD, write=write)
    registry = open_registry(environment)
    version = registry.version_by_alias(NAME, "champion")
    folder = registry.download(version, tmp_path / "files")
    (base,) = (tmp_path / "store" / "initial").glob("*.safetensors")
    found = version.tags["perennial.base"], version.tags["perennial.base_bits"]
    assert found == (base.stem[:12], "4")
    lineage = Lineage.from_json((folder / "lineage.json").read_bytes())
    assert (lineage.adapter.base_bits, *lineage.initial.files.values()) == (4, base.stem)
    assert "of 4 bits" in (folder / "model_card.md").read_text()
