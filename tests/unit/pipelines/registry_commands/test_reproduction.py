"""Known obstacles to a reproduction are reported before anything is trained."""

import hashlib
import json
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from perennial.cli import main
from perennial.contracts.lineage import Lineage
from perennial.contracts.training import Challenger, TrainedPart
from perennial.engine.config.training import TrainingSection
from perennial.registry.model_registry import open_registry
from perennial.registry_commands import reproduction
from perennial.registry_commands.reproduction import as_trained
from registered_versions import NAME
from small_models import GOOD
from stored_weights import store_weights


@pytest.fixture
def reproduce(home, capsys, register, monkeypatch):
    """Asks for version 1, which was registered without digests of its files, and returns the output."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    register(GOOD, promoted=False)

    def run(*arguments, code=(f"--code={home}",)):
        before = _addresses()
        ended = main(["reproduce", NAME, "1", "--home", str(home), *code, *arguments])
        assert _addresses() == before  # a refusal leaves no trace
        output = capsys.readouterr()
        return ended, output.out + output.err

    return run


@pytest.fixture
def folder(environment, reproduce) -> Path:
    """Where the version's files lie."""
    (version,) = open_registry(environment).versions(NAME)
    return Path(version.source.removeprefix("file://"))


def _addresses() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("PERENNIAL_", "MLFLOW_")) or name == "PYTHONPATH"
    }


def rewrite(folder: Path, **values) -> None:
    file = folder / "lineage.json"
    lineage = Lineage.from_json(file.read_bytes())
    file.write_text(lineage.model_copy(update=values).to_json())


def test_all_that_differs_is_named_at_once(reproduce, folder):
    rewrite(folder, python="3.0.1", platform="BeOS ppc", packages={"torch": "0.1"})
    code, output = reproduce()
    assert code == 2
    assert "nothing has been trained" in output
    for line in ("python: 3.0.1 → ", "platform: BeOS ppc → ", "packages.torch: 0.1 → ",
                 "packages.numpy: not set → ", "code_digest: code → "):  # fmt: skip
        assert line in output


def test_the_version_may_stand_behind_the_name_and_must_stand_somewhere(
    reproduce, folder, home, capsys
):
    rewrite(folder, python="3.0.1")

    def ask(*place):
        code = main(["reproduce", *place, "--home", str(home), f"--code={home}"])
        return code, capsys.readouterr().err

    assert ask(f"{NAME}@1") == ask(NAME, "1")
    assert "python: 3.0.1 → " in ask(f"{NAME}@1")[1]
    code, error = ask(NAME)
    assert (code, f"write `perennial reproduce {NAME}@2`" in error) == (2, True)
    code, error = ask(f"{NAME}@1", "2")
    assert (code, "two versions were named: 1" in error) == (2, True)


def _other_seed(folder):
    contract = json.loads((folder / "contract.json").read_text())
    contract["training"]["seed"] = 8
    (folder / "contract.json").write_text(json.dumps(contract))


def _other_split(folder):
    snapshot = json.loads((folder / "snapshot.json").read_text())
    snapshot["split"]["test_fraction"] = 0.4
    (folder / "snapshot.json").write_text(json.dumps(snapshot))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_other_seed, "SHA-256 of contract.json: "),
        (_other_split, "SHA-256 of snapshot.json: "),
        (lambda f: (f / "model.safetensors").write_bytes(b"x"), "SHA-256 of weights: "),
        (lambda f: (f / "contract.json").unlink(), "it lacks a readable contract"),
        (lambda f: (f / "lineage.json").write_text("{}"), "it lacks a readable lineage"),
    ],
    ids=["option", "split", "weights", "no contract", "no lineage"],
)
def test_a_version_that_is_not_what_was_registered_is_refused(reproduce, folder, harm, message):
    harm(folder)
    code, output = reproduce("--anyway")
    assert code == 2
    assert message in output


def _change(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x")


@pytest.mark.parametrize(("harm", "message"), [(Path.unlink, "part.parquet"), (_change, "changed")])
def test_data_that_is_missing_or_changed_is_refused(reproduce, home, harm, message):
    (part,) = home.glob("data-*/part.parquet")
    harm(part)
    code, output = reproduce("--anyway")
    assert code == 2
    assert message in output


def test_a_moved_dataset_is_found_at_the_given_address(reproduce, home, monkeypatch):
    (part,) = home.glob("data-*/part.parquet")
    part.parent.rename(home / "moved")
    monkeypatch.chdir(home)
    code, output = reproduce("--data", "moved")
    assert code == 2
    assert "code_digest" in output  # the data were accepted


@pytest.mark.parametrize(
    ("commit", "message"),
    [
        ("abc", "`git worktree add FOLDER abc`, and name"),
        ("abc-dirty", "with the version's uncommitted.diff, which you should read"),
        ("", "a copy, and name the task's folder there with --code"),
    ],
)
def test_other_sources_end_in_an_error_that_names_the_original_ones(
    reproduce, folder, commit, message
):
    rewrite(folder, commit=commit)
    code, output = reproduce()
    assert code == 2
    assert message in output


@pytest.mark.parametrize("launcher", ["pytorchjob", "auto"])
def test_what_was_trained_as_a_job_on_a_cluster_is_trained_again_on_this_machine(
    reproduce, folder, launcher, tmp_path, monkeypatch
):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no such file"))
    contract = json.loads((folder / "contract.json").read_text())
    contract["training"] |= {"steps": 20, "evaluate_every_steps": 20}
    contract["resources"] |= {"launcher": launcher, "num_processes": 1}
    text = json.dumps(contract).encode()
    (folder / "contract.json").write_bytes(text)
    rewrite(folder, contract_digest=hashlib.sha256(text).hexdigest())
    code, output = reproduce("--anyway")
    assert code == 1
    assert "different weights" in output  # those of the registered version were made up


@pytest.fixture
def started_from(folder, environment):
    """Lets the version have started from stored weights, which are returned."""

    def run(**weights) -> Path:
        store = Path(environment.store_uri)
        initial = store_weights(store, {name: torch.ones(1) for name in weights})
        challenger = Challenger.read(folder)
        challenger.model_copy(update={"initial": initial}).write(folder)
        contract = json.loads((folder / "contract.json").read_text())
        contract["resources"] |= {"launcher": "local", "num_processes": 1}
        text = json.dumps(contract).encode()
        (folder / "contract.json").write_bytes(text)
        rewrite(folder, contract_digest=hashlib.sha256(text).hexdigest())
        (digest,) = initial.origin.files.values()
        return store / f"initial/{digest}.safetensors"

    return run


@pytest.mark.parametrize(
    ("harm", "message"),
    [(Path.unlink, "pinned weights are gone"), (_change, "is not the file that was pinned")],
)
def test_pinned_weights_are_verified_before_anything_is_trained(
    reproduce, started_from, monkeypatch, harm, message
):
    harm(started_from(weight=1))
    monkeypatch.setattr(reproduction, "run_to_end", None)
    code, output = reproduce("--anyway")
    assert (code, message in output) == (2, True), output


def test_the_logs_of_a_failed_training_are_kept(reproduce, started_from, tmp_path, monkeypatch):
    """The error names them; they were deleted with the folder of the training."""
    started_from(unknown=1)
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    code, output = reproduce("--anyway")
    assert code == 2
    log = Path(output.split("the logs of all ranks, beside ")[1].split("\n")[0])
    assert any("unknown" in each.read_text() for each in log.parent.iterdir())


def test_an_unknown_version_is_refused(reproduce, home, capsys):
    assert main(["reproduce", NAME, "2", "--home", str(home)]) == 2
    assert "clicks has no '2'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sizes", "trained"), [((), 512), ((8,), 8), ((512, 8), 512)], ids=["old", "one part", "two"]
)
def test_passes_have_the_rows_that_they_had(sizes, trained):
    part = TrainedPart(
        from_step=0, processes=2, threads=1, strategy="fsdp", micro_batch_size=1, device="CPU"
    )
    parts = tuple(part.model_copy(update={"micro_batch_size": size}) for size in sizes)
    record = SimpleNamespace(
        contract=SimpleNamespace(training=TrainingSection()), lineage=SimpleNamespace(parts=parts)
    )
    assert as_trained(record).micro_batch_size == trained
