"""An adapter through the whole job: stored weights in, a champion that names them out, and on from there."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from click_stream import CONTRACT, add_month
from perennial.cli import main
from perennial.clients.object_store import sha256_of_file
from perennial.contract import load_contract
from perennial.contracts.data import Split
from perennial.contracts.gate import Registration, Verdict
from perennial.contracts.skeleton import SkeletonReport
from perennial.contracts.training import Challenger
from perennial.data.dataset import Dataset
from perennial.engine.task import inputs_of, load_task
from perennial.runs import Home
from perennial.snapshot_data.manifest import take_snapshot

ADAPTER = """
[training.adapter]
targets = ["hidden.*"]
rank = 2
whole = ["output.*"]
"""
SOURCE = """
[model.initial]
source = "safetensors"
uri = "base.safetensors"
sha256 = "SHA256"
license = "mit"
"""


def write_base(project: Path) -> str:
    """Weights that know the task but for its base rate, as of another stream; their digest."""
    contract = load_contract(project / "plain.toml")
    snapshot = take_snapshot(contract.data, contract.split)
    task = load_task(contract.model.task, contract.model.options, snapshot.task_columns)
    dataset = Dataset(snapshot)
    task.fit(dataset.scan(Split.TRAIN))
    torch.manual_seed(0)
    model, batch = task.build_model(), task.encode(dataset.collect(dataset.scan(Split.TRAIN)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        task.losses(model(**inputs_of(batch)), batch).mean().backward()
        optimizer.step()
    with torch.no_grad():
        model.output.bias += 0.5
    save_file(model.state_dict(), project / "base.safetensors")
    return sha256_of_file(project / "base.safetensors")


def run(project: Path, text: str) -> Path:
    """The folder of a run of this contract."""
    (project / "contract.toml").write_text(text)
    assert main(["run", str(project / "contract.toml"), "--home", str(project / "home")]) == 0
    home = Home(project / "home")
    return home.folder(home.runs()[-1].run_id)


def output(folder: Path, step: str, name: str) -> Path:
    (found,) = (folder / "steps").glob(f"{step}-*/{name}")
    return found


@pytest.mark.full
@pytest.mark.timeout(600)
def test_an_adapter_becomes_champion_and_is_continued(tmp_path, capfd):
    add_month(tmp_path / "data", 0)
    add_month(tmp_path / "data", 1)
    (tmp_path / "plain.toml").write_text(CONTRACT)
    digest = write_base(tmp_path)

    folder = run(tmp_path, CONTRACT + SOURCE.replace("SHA256", digest) + ADAPTER)
    skeleton = SkeletonReport.read(output(folder, "check_skeleton", "skeleton"))
    outcomes = {result.check: result.outcome for result in skeleton.results}
    assert (outcomes["initial_weights"], outcomes["frozen_parameters"]) == ("passed", "passed")
    challenger = Challenger.read(output(folder, "select_checkpoint", "challenger"))
    assert list(challenger.base.origin.files.values()) == [digest]
    assert Verdict.read(output(folder, "evaluate_model", "verdict")).promote
    assert Registration.read(output(folder, "register_model", "registration")).version == "1"
    assert main(["explain", "clicks@champion", "--home", str(tmp_path / "home")]) == 0
    shown = capfd.readouterr().out
    assert digest[:12] in shown
    assert "LoRA of rank 2, alpha 16, on hidden.*, output.* trained whole" in shown

    warm = '\n[model.initial]\nsource = "champion"\n'
    later = run(
        tmp_path, CONTRACT.replace("steps = 60", "steps = 40") + warm + ADAPTER + "merge = true\n"
    )
    verdict = Verdict.read(output(later, "evaluate_model", "verdict"))
    assert (verdict.champion_version, verdict.serving.failure) == ("1", "")
    assert verdict.comparisons[0].champion is not None, "the adapter was scored with its base"
    merged = Challenger.read(output(later, "select_checkpoint", "challenger"))
    assert merged.base is None
    assert merged.initial.origin.files != challenger.base.origin.files, "the sum is the new base"


@pytest.mark.full
@pytest.mark.timeout(600)
def test_an_adapter_on_4_bits_is_examined_scored_and_served_as_it_was_trained(tmp_path, capfd):
    """The base is stored once, whole; each reader quantizes it to the same bits."""
    contract = CONTRACT.replace("hidden = [16]", "hidden = [64, 64]")
    add_month(tmp_path / "data", 0)
    add_month(tmp_path / "data", 1)
    (tmp_path / "plain.toml").write_text(contract)
    digest = write_base(tmp_path)
    few = SOURCE.replace("SHA256", digest) + ADAPTER + "base_bits = 4\n"
    folder = run(tmp_path, contract + few)
    skeleton = SkeletonReport.read(output(folder, "check_skeleton", "skeleton"))
    outcomes = {result.check: result.outcome for result in skeleton.results}
    assert (outcomes["initial_weights"], outcomes["frozen_parameters"]) == ("passed", "passed")
    verdict = Verdict.read(output(folder, "evaluate_model", "verdict"))
    assert (verdict.promote, verdict.serving.failure) == (True, "")
    assert Registration.read(output(folder, "register_model", "registration")).version == "1"
    exported = output(folder, "select_checkpoint", "challenger")
    challenger = Challenger.read(exported)
    assert (challenger.adapter.base_bits, *challenger.base.origin.files.values()) == (4, digest)
    assert main(["explain", "clicks@champion", "--home", str(tmp_path / "home")]) == 0
    assert "of 4 bits" in capfd.readouterr().out
