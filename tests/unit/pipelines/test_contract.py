"""A contract's mistakes are found before anything runs, each with where, what, and what to write."""

import json
import re
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import ValidationError

from declaring_tasks import WithOwn
from perennial.contract import Contract, check_task, load_contract, to_toml
from perennial.contract_file.sections import ContractError
from perennial.contracts.data import SplitSection
from perennial.contracts.errors import BadTaskError, PerennialError
from perennial.contracts.section import CONTRACT_SECTIONS, REMOVED_OPTIONS
from perennial.contracts.snapshot import Snapshot
from perennial.snapshot_data.roles import role_of

ROOT = Path(__file__).parents[3]
MINIMAL = """
[model]
name = "clicks"
task = "perennial.tasks.tabular:TabularClassification"

[data]
uri = "data"
label = "clicked"
time = "shown_at"
ids = ["click_id"]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "contract.toml"
    path.write_text(text)
    return path


def test_minimal_contract_has_a_default_for_everything_else(tmp_path):
    contract = load_contract(write(tmp_path, MINIMAL))
    assert len(MINIMAL.strip().splitlines()) <= 12
    assert contract.split.resolved_method(contract.data) == "time"
    assert contract.data.uri == str(tmp_path / "data")


def test_a_group_may_be_a_feature_where_the_split_is_by_time(tmp_path):
    named = MINIMAL.replace("[data]", '[data]\ngroup = "user"\nfeatures = ["user", "item"]')
    data = load_contract(write(tmp_path, named)).data
    columns = {"user": "String", "item": "String", "clicked": "Int64", "shown_at": "Datetime"}
    snapshot = Snapshot(
        data=data, split=SplitSection(), files=(), columns=columns, rows=0, split_rows={}
    )
    assert [*snapshot.task_columns.features] == ["item", "user"]
    assert role_of(snapshot, "user") == "feature, group"


def test_the_contracts_of_the_page_on_fine_tuning_hold(tmp_path):
    text = (ROOT / "docs" / "fine_tuning.md").read_text()
    examples = re.findall(r"```toml\n(\[model\]\n.*?)```", text, re.DOTALL)
    documents, pictures, texts = (load_contract(write(tmp_path, each)) for each in examples)
    assert documents.model.options["tokenizer"] == "tokenizer.json"
    assert pictures.model.options["preprocessor"] == "preprocessor_config.json"
    assert texts.training.adapter.targets[0] == "*.attention.*.query"


def test_steps_know_every_section_of_a_contract():
    assert set(Contract.model_fields) == CONTRACT_SECTIONS


def test_resolved_contract_reads_back_as_itself(tmp_path):
    text = MINIMAL + "\n[model.options]\nhidden = [8, 4]\n\n[split]\ntrain_days = 90\n"
    contract = load_contract(write(tmp_path, text))
    again = load_contract(write(tmp_path, to_toml(contract)))
    assert again == contract
    assert again.digest() == contract.digest()


def test_contract_travels_as_json_without_losing_integers(tmp_path):
    contract = load_contract(write(tmp_path, MINIMAL))
    again = Contract.from_json(contract.to_json())
    assert again == contract
    assert isinstance(again.training.steps, int)


@pytest.mark.parametrize(
    ("section", "line", "named"),
    [
        ("gate", "max_milliseconds = 5.0", "gate.max_milliseconds"),
        ("gate", 'mode = "non_inferior"\nalso_better = ["faster"]', "faster"),
        ("gate", "processes = 2", "gate.processes"),
        ("selection", "processes = 2", "selection.processes"),
        ("model.ensemble", "champions = 2", "model.ensemble"),
    ],
)
def test_a_model_that_is_scored_in_shards_is_not_measured_whole(tmp_path, section, line, named):
    text = with_line(section, line)
    load_contract(write(tmp_path, text + "\n[scoring]\nshards = 1\n"))
    with pytest.raises(ContractError, match=rf"(?s)\[scoring\] shards.*{named}.*shards = 1"):
        load_contract(write(tmp_path, text + "\n[scoring]\nshards = 2\n"))


def test_shards_that_do_not_divide_evenly_over_machines_are_refused(tmp_path):
    text = with_line("gate", "min_test_rows = 100") + "\n[scoring]\nmachines = 2\n"
    assert load_contract(write(tmp_path, text + "shards = 4\n")).scoring.machines == 2
    with pytest.raises(
        ContractError, match=r"shards = 3 is not divisible by scoring\.machines = 2"
    ):
        load_contract(write(tmp_path, text + "shards = 3\n"))


@pytest.mark.parametrize("more", ["", ", merge = true", ", base_bits = 4"])
def test_an_adapter_may_be_scored_in_shards(tmp_path, more):
    adapter = with_line("training", f'adapter = {{ targets = ["blocks.*"]{more} }}')
    base = (
        f'\n[model.initial]\nsource = "safetensors"\nuri = "s3://b/base"\nsha256 = "{"0" * 64}"\n'
    )
    found = load_contract(write(tmp_path, adapter + base + "\n[scoring]\nshards = 2\n"))
    assert found.scoring.shards == 2


def test_processes_that_share_rows_need_one_together(tmp_path):
    lines = (
        "\n[training]\nglobal_batch_size = 2\nparallelism = { tensor = 2, context = 2 }\n"
        "\n[resources]\nnum_processes = 8\n"
    )
    contract = load_contract(write(tmp_path, MINIMAL + lines))
    assert contract.resources.num_processes == 8
    with pytest.raises(ContractError, match="each of 2 processes with rows of their own"):
        load_contract(write(tmp_path, (MINIMAL + lines).replace("size = 2", "size = 1")))


def with_line(section: str, line: str) -> str:
    return f"{MINIMAL}\n[{section}]\n{line}\n"


def without(line: str) -> str:
    assert line in MINIMAL
    return MINIMAL.replace(line, "")


# mistake → the text of the contract, and what the message must contain
MISTAKES = {
    "misspelt section": (MINIMAL + "\n[trainig]\nsteps = 5\n", ["[trainig]", "write:    [training]"]),
    "misspelt key": (with_line("training", "stepz = 5"), ["stepz", "write:    steps = 5", ":13"]),
    "text for a number": (with_line("training", 'steps = "many"'), ['"many"', "integer", "steps = "]),
    "fraction for a count": (with_line("training", "steps = 1.5"), ["1.5", "integer"]),
    "zero steps": (with_line("training", "steps = 0"), ["steps = 0", "greater than or equal to 1"]),
    "negative learning rate": (
        with_line("training", "optimizer = { learning_rate = -0.1 }"),
        ["learning_rate", "greater than 0"],
    ),
    "unknown optimizer": (with_line("training", 'optimizer = { name = "adamw2" }'), ["optimizer", "adamw2", "adamw"]),
    "unknown strategy": (with_line("training", 'strategy = "fsdp2"'), ['"fsdp2"', 'strategy = "fsdp"']),
    "unknown precision": (with_line("training", 'precision = "bfloat16"'), ['"bfloat16"', 'precision = "bf16"']),
    "batch smaller than the processes": (
        with_line("training", "global_batch_size = 1"),
        ["global_batch_size = 1", "at least one row", "global_batch_size = 2"],
    ),
    "chosen by a metric that is not kept by": (
        with_line("training", 'metric = "roc_auc"') + '\n[selection]\nmetric = "log_loss"\n',
        ["[training] metric", "log_loss", "may not have been kept"],
    ),
    "single strategy on two processes": (
        with_line("training", 'strategy = "single"'),
        ["strategy", "num_processes = 1"],
    ),
    "a last value without a time": (
        without('time = "shown_at"') + '\n[gate]\nmust_beat = ["last_value"]\n',
        ["must_beat", "a time column"],
    ),
    "a fresher model without a time": (
        without('time = "shown_at"') + '\n[gate]\nmode = "non_inferior"\n',
        ["also_better", "a time column"],
    ),
    "people without a figure": (
        with_line("gate", 'must_beat = ["human"]\nmetric = "roc_auc"'),
        ["must_beat", "human = { roc_auc = … }"],
    ),
    "a baseline without a loss": (
        with_line("gate", 'must_beat = ["linear"]\nmetric = "loss"'),
        ["must_beat", "the loss of this baseline is unknown"],
    ),
    "no model section": ("[data]\nuri = 'd'\nlabel = 'y'\n", ["[model]", "required"]),
    "no label": (without('label = "clicked"'), ["[data] label", "required"]),
    "no task": (without('task = "perennial.tasks.tabular:TabularClassification"'), ["[model] task", "required"]),
    "task without a class": (
        MINIMAL.replace("perennial.tasks.tabular:TabularClassification", "perennial.tasks.tabular"),
        ["[model] task", "perennial.tasks.tabular"],
    ),
    "name with capitals": (MINIMAL.replace('"clicks"', '"Clicks"'), ["[model] name", "Clicks"]),
    "a key twice": (MINIMAL + 'label = "b"\n', ["contract.toml:11: label = \"b\"", "valid TOML"]),
    "one column in two roles": (
        MINIMAL.replace('ids = ["click_id"]', 'ids = ["clicked"]'),
        ["'clicked'", "label", "ids", "one role"],
    ),
    "a time that is a feature": (
        MINIMAL.replace("[data]", '[data]\nfeatures = ["shown_at", "x"]'),
        ["'shown_at'", "drop it from features and set time_is_feature = true"],
    ),
    "a feature whose tested values are never trained on": (
        MINIMAL.replace("[data]", '[data]\ngroup = "store"\nfeatures = ["store", "x"]')
        + '\n[split]\nmethod = "group"\n',
        ["[data] features", "'store'", "never trained on", "split by time"],
    ),
    "text for a list": (MINIMAL.replace('["click_id"]', '"click_id"'), ["[data] ids", '"click_id"']),
    "unknown format": (MINIMAL.replace('uri = "data"', 'uri = "data"\nformat = "csv"'), ['"csv"', 'format = "parquet"']),
    "an adapter of random weights": (
        with_line("training", 'adapter = { targets = ["blocks.*"] }'),
        ["[training] adapter", "weights to adapt", 'source = "safetensors"  # in [model.initial]'],
    ),
    "an adapter of nothing": (
        with_line("training", "adapter = { targets = [] }"), ["adapter.targets", "at least 1"],
    ),
    "a base of 2 bits": (
        with_line("training", 'adapter = { targets = ["blocks.*"], base_bits = 2 }'),
        ["adapter.base_bits", "4, 8"],
    ),
    "an adapter of a lower precision": (
        with_line("training", 'adapter = { targets = ["blocks.*"], quantization = "nf4" }'),
        ["quantization"],
    ),
    "split by time without a time": (
        without('time = "shown_at"') + '\n[split]\nmethod = "time"\n',
        ["[split] method", "time column"],
    ),
    "split by group without a group": (with_line("split", 'method = "group"'), ["[split] method", "group column"]),
    "split by hash without ids": (
        without('time = "shown_at"').replace('ids = ["click_id"]', ""),
        ["[data] ids", "identify a row"],
    ),
    "shares that leave nothing to train on": (
        with_line("split", "validation_fraction = 0.5\ntest_fraction = 0.45"),
        ["0.95", "below 0.9"],
    ),
    "share above one": (with_line("split", "test_fraction = 25.0"), ["test_fraction = 25.0", "less than 1"]),
    "training days without a time": (
        without('time = "shown_at"') + "\n[split]\ntrain_days = 90\n",
        ["train_days", "time column"],
    ),
    "availability without a time": (
        without('time = "shown_at"') + "\n[data.available_at]\nprice = \"priced_at\"\n",
        ["available_at", "time"],
    ),
    "waiver without a reason": (with_line("skeleton", 'waivers = { initial_loss = "" }'), ["initial_loss"]),
    "waiver of an unknown check": (with_line("skeleton", 'waivers = { inital_loss = "x" }'), ["inital_loss", "initial_loss"]),
    "broken TOML": ("[model\nname = 1", ["contract.toml:1: [model", "valid TOML: ", "line 1", "write:    [model]"]),
    "TOML that ends too early": ('[model]\nname = "a', ['contract.toml:2: name = "a', "valid TOML"]),
    "an empty file": ("", ["[model]", "required"]),
    "a tag for a training's image": (
        with_line("resources.cluster", 'image = "registry.example/trainer:latest"'),
        ["[resources] cluster.image", "trainer:latest", "by digest", "imagetools inspect"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_named_with_its_place_and_remedy(tmp_path, mistake):
    text, expected = MISTAKES[mistake]
    with pytest.raises(ContractError) as caught:
        load_contract(write(tmp_path, text))
    message = str(caught.value)
    assert "contract.toml" in message
    for part in expected:
        assert part in message, message


def test_all_mistakes_are_listed_at_once(tmp_path):
    text = with_line("training", 'steps = 0\nstrategy = "dp"') + "\n[gate]\nconfidense = 0.9\n"
    with pytest.raises(ContractError) as caught:
        load_contract(write(tmp_path, text))
    assert len(caught.value.problems) == 3


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(PerennialError, match="cannot be read"):
        load_contract(tmp_path / "nothing.toml")


class Unrecordable(WithOwn):
    metrics: ClassVar = {
        "f1 (macro)": "maximize",
        "recall@5": "maximize",
        "top/5 share": "maximize",
    }


def test_metrics_that_cannot_be_recorded_are_refused_before_anything_runs(tmp_path):
    text = MINIMAL.replace("perennial.tasks.tabular:TabularClassification", "{}")
    check_task(load_contract(write(tmp_path, text.format("declaring_tasks:WithOwn"))))
    with pytest.raises(BadTaskError, match=r"cannot be recorded.*\n.*'f1 \(macro\)', 'recall@5'\n"):
        check_task(load_contract(write(tmp_path, text.format(f"{__name__}:Unrecordable"))))


@pytest.mark.parametrize(("option", "default"), REMOVED_OPTIONS.items())
def test_a_removed_option_is_an_error_in_a_file(tmp_path, option, default):
    place = {
        "spread_over": "resources.cluster", "overfit_tolerance": "skeleton",
        "initial_loss_tolerance": "skeleton",
    }.get(option, "expectations")  # fmt: skip
    path = tmp_path / "contract.toml"
    path.write_text(f"{MINIMAL}\n[{place}]\n{option} = {json.dumps(default)}\n")
    with pytest.raises(ContractError) as caught:
        load_contract(path)
    assert f"it was removed, {json.dumps(default)} holds always" in str(caught.value)
    assert option in str(caught.value)


def test_a_stored_contract_of_an_earlier_version_is_read(tmp_path):
    """Registered versions and deployed schedules hold every option with its default."""
    path = tmp_path / "contract.toml"
    path.write_text(MINIMAL)
    contract = load_contract(path)
    old = json.loads(contract.to_json())
    old["expectations"] |= {"max_blank_share": 0.01, "max_unreadable_share": 0.0}
    old["skeleton"] |= {"overfit_tolerance": 0.05}
    old["resources"]["cluster"]["spread_over"] = "kubernetes.io/hostname"
    assert Contract.from_json(json.dumps(old)) == contract


@pytest.mark.parametrize("change", [{"max_blank_share": 0.5}, {"unknown": 0.01}])
def test_a_stored_contract_that_set_a_removed_option_is_refused(tmp_path, change):
    path = tmp_path / "contract.toml"
    path.write_text(MINIMAL)
    old = json.loads(load_contract(path).to_json())
    old["expectations"] |= {"max_unreadable_share": 0.0} | change
    with pytest.raises(ValidationError, match=next(iter(change))):
        Contract.from_json(json.dumps(old))
