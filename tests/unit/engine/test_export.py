"""A trained model leaves as one file, and what does not fit comes back as a clear error."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save

from checkpoint_files import flip_a_bit
from perennial.contracts.errors import BadTaskError
from perennial.engine import export as exporting
from perennial.engine.adapters import build_starting_model
from perennial.engine.checkpoints.checkpointer import load_checkpoint_model
from perennial.engine.checkpoints.folder import (
    CheckpointManifest,
    DamagedCheckpointError,
    Progress,
    commit,
    partial_path,
)
from perennial.engine.checkpoints.reading import export_weights
from perennial.engine.export import (
    DTYPES,
    INDEX_FILE,
    WEIGHTS_FILE,
    weights_digest,
    write_weights,
)
from tiny_training import TinyOptions, TinyTask, finished, tiny_job, tiny_section


class Tied(nn.Module):
    """Shares one matrix between input and output, as language models do."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 3)
        self.output = nn.Linear(3, 7, bias=False)
        self.output.weight = self.embed.weight


def test_tied_weights_are_exported_and_loaded(tmp_path):
    model, other = Tied(), Tied()
    digest = write_weights(model, tmp_path)
    other.load_state_dict(safetensors.torch.load_file(tmp_path / WEIGHTS_FILE))
    assert (other.output.weight == model.embed.weight).all()
    assert write_weights(other, tmp_path) == digest


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_every_type_is_stored_as_the_format_wants_it(tmp_path):
    model = nn.Module()
    for dtype, label in DTYPES.items():
        for rows in (0, 1, 3):
            model.register_buffer(f'{label}-{rows}-ä"', torch.ones(rows, 2).to(dtype))
    model.register_buffer("scalar", torch.tensor(2.0))
    model.register_buffer("rotation", torch.polar(torch.ones(3), torch.arange(3.0)))
    model.register_buffer("turned", torch.randn(4, 3).t())
    digest = write_weights(model, tmp_path)
    contiguous = {name: value.contiguous() for name, value in model.state_dict().items()}
    expected = safetensors.torch.save(contiguous)
    assert (tmp_path / WEIGHTS_FILE).read_bytes() == expected
    assert digest == hashlib.sha256(expected).hexdigest()


class Stateful(nn.Module):
    """A module with state of its own beside its tensors."""

    def __init__(self, state):
        super().__init__()
        self.state = state

    def get_extra_state(self):
        return self.state

    def set_extra_state(self, state):
        self.state = state


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ({"scale": 2.0}, "scaler._extra_state: dict"),
        (torch.zeros(2, dtype=torch.complex128), "scaler._extra_state: torch.complex128"),
    ],
)
def test_state_that_cannot_be_exported_is_refused_before_the_training(monkeypatch, state, shown):
    task = TinyTask(TinyOptions(), None)

    def start(state):
        model = nn.ModuleDict({"scaler": Stateful(state), "tied": Tied()})
        monkeypatch.setattr(task, "build_model", lambda: model)
        build_starting_model(task, tiny_section(), None)

    with pytest.raises(BadTaskError, match=shown):
        start(state)
    start(torch.zeros(2))


@pytest.mark.parametrize("averaged", [False, True])
def test_a_sharded_checkpoint_is_exported_without_a_model(root, tmp_path, averaged):
    result = finished(
        tiny_job(root, options=TinyOptions(batch_norm=True), averaging={"decay": 0.9})
    )
    uri = result.checkpoints[-1].uri
    _, model = load_checkpoint_model(uri, result, averaged=averaged)
    expected = write_weights(model, tmp_path / "model")
    assert export_weights(uri, tmp_path / "checkpoint", averaged=averaged) == expected
    other = export_weights(uri, tmp_path / "other", averaged=not averaged)
    assert other != expected


def test_a_damaged_checkpoint_is_not_exported(root, tmp_path):
    result = finished(tiny_job(root, steps=2, evaluate_every_steps=2))
    uri = result.checkpoints[-1].uri
    flip_a_bit(Path(uri) / "__1_0.distcp")
    with pytest.raises(DamagedCheckpointError):
        export_weights(uri, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_exporting_needs_the_memory_of_a_few_tensors(tmp_path):
    size, count = 8 * 1024 * 1024, 12
    weights = {f"layer-{number}": torch.full((size,), float(number)) for number in range(count)}
    partial = partial_path(tmp_path, 1)
    save({"model": weights}, checkpoint_id=partial, no_dist=True)
    manifest = CheckpointManifest(
        fingerprint="f", step=1, metrics={}, files={}, progress=Progress(step=1)
    )
    checkpoint = commit(tmp_path, manifest)
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from perennial.engine.checkpoints.reading import export_weights\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "export_weights(sys.argv[1], Path(sys.argv[2]))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(checkpoint), str(tmp_path / "out")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(done.stdout) * 1024 < 4.5 * size * 4 < count * size * 4 / 2
    stored = safetensors.torch.load_file(tmp_path / "out" / WEIGHTS_FILE)
    assert all((stored[name] == value).all() for name, value in weights.items())


def test_large_weights_are_stored_in_shards_with_an_index(root, tmp_path, monkeypatch):
    """Written one tensor at a time, and found by the index as `transformers` does."""
    result = finished(tiny_job(root))
    uri = result.checkpoints[-1].uri
    whole = export_weights(uri, tmp_path / "whole")
    expected = safetensors.torch.load_file(tmp_path / "whole" / WEIGHTS_FILE)
    monkeypatch.setattr(exporting, "SHARD_BYTES", max(each.nbytes for each in expected.values()))
    folder = tmp_path / "shards"
    digest = export_weights(uri, folder)
    assert digest == weights_digest(folder) == export_weights(uri, tmp_path / "again") != whole
    index = json.loads((folder / INDEX_FILE).read_text())
    shards = sorted(set(index["weight_map"].values()))
    count = len(shards)
    assert count > 1
    assert shards == [f"model-{n + 1:05}-of-{count:05}.safetensors" for n in range(count)]
    assert index["metadata"]["total_size"] == sum(each.nbytes for each in expected.values())
    for name, value in expected.items():
        stored = safetensors.torch.load_file(folder / index["weight_map"][name])[name]
        assert torch.equal(stored, value)
    flip_a_bit(folder / shards[-1])
    assert weights_digest(folder) == ""
    (folder / shards[0]).unlink()
    assert weights_digest(folder) == ""
