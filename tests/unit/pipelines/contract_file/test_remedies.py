"""Each mistake in a contract is answered with the line to write: with it, the contract is valid."""

import re

import polars as pl
import pytest

from minimal_contract import MINIMAL
from perennial.contract import load_contract
from perennial.contract_file.sections import ContractError

REMOVE = "remove this line"


def training(*lines):
    return "\n".join((MINIMAL + "[training]", *lines, ""))


def section(name, *lines):
    return "\n".join((f"{MINIMAL}[{name}]", *lines, ""))


def replaced(old, new):
    assert old in MINIMAL
    return MINIMAL.replace(old, new)


# What people write, who know Lightning, Hugging Face, Keras, or YAML → the line to write instead.
MISTAKES = {
    "a number in quotes": (training('steps = "600"'), "steps = 600"),
    "a float for a count": (training("steps = 2e3"), "steps = 2000"),
    "capitals in a name": (training('optimizer = { name = "AdamW", lr = 0.001 }'),
                           'optimizer = { name = "adamw", learning_rate = 0.001 }'),
    "an optimizer by its name alone": (training('optimizer = "adamW"'), 'optimizer = { name = "adamw" }'),
    "lr": (training("lr = 0.001"), "optimizer = { learning_rate = 0.001 }"),
    "lr beside the optimizer's name": (
        training('optimizer = { name = "sgd", learning-rate = "0.05" }'),
        'optimizer = { name = "sgd", learning_rate = 0.05 }',
    ),
    "lr in a table of its own": (training("[training.optimizer]", "lr = 0.01"), "learning_rate = 0.01"),
    "lr above all sections": ("lr = 0.1\n" + MINIMAL, "optimizer = { learning_rate = 0.1 }  # in [training]"),
    "epochs": (
        training("global_batch_size = 64", "max_epochs = 10"),
        "steps = 94  # 10 epochs of about 600 training rows / 64",
    ),
    "epochs in camel case": (
        training("numTrainEpochs = 3"), "steps = 2  # 3 epochs of about 600 training rows / 1024"
    ),
    "batch_size": (training('batch_size = "32"'), "global_batch_size = 32"),
    "patience": (training("patience = 5"), REMOVE),
    "device": (training('device = "cuda"'), REMOVE),
    "num_workers": (training("num_workers = 4"), "loading = { workers = 4 }"),
    "no workers": (training("num_workers = 0"), f"{REMOVE}: training.loading.workers is 1 by default"),
    "gpus": (training("gpus = [0, 1, 2]"), "num_processes = 3  # in [resources]"),
    "peft's names": (
        MINIMAL.replace("[data]", 'initial = { source = "champion" }\n[data]', 1)
        + '[training.adapter]\ntargets = ["hidden.*"]\nr = 4\n',
        "rank = 4",
    ),
    "QLoRA in bitsandbytes' words": (
        MINIMAL.replace("[data]", 'initial = { source = "champion" }\n[data]', 1)
        + '[training.adapter]\ntargets = ["hidden.*"]\nload_in_4bit = true\n',
        "base_bits = 4",
    ),
    "alpha of a distillation": (
        training("[training.distillation]", 'teachers = ["@champion"]', "alpha = 0.3"), "weight = 0.3",
    ),
    "T of a distillation": (
        training("[training.distillation]", 'teachers = ["@champion"]', "T = 2"), "temperature = 2",
    ),
    "max_grad_norm": (training("max_grad_norm = 0.5"), "clipping = { max_norm = 0.5 }"),
    "warm-up in steps": (training("warmup_steps = 200"), "schedule = { warmup_fraction = 0.1 }"),
    "warm-up without a unit": (training("warmup = 50"), "schedule = { warmup_fraction = 0.025 }"),
    "a warm-up beyond all steps": (
        training("warmup_steps = 5000"),
        f"{REMOVE}: training.schedule.warmup_fraction is 0.05 by default",
    ),
    "the period of another schedule": (
        training('schedule = { shape = "step", step_size = 30 }'),
        f"{REMOVE}: training.schedule.milestones is [0.5, 0.75] by default",
    ),
    "beta1 in a table": (
        training('optimizer = { type = "adam", beta1 = 0.8 }'),
        'optimizer = { name = "adam", betas = [0.8, 0.999] }',
    ),
    "a decimal comma in quotes": (section("gate", 'min_improvement = "0,001"'), "min_improvement = 0.001"),
    "a decimal comma with a unit": (
        section("resources.cluster", 'memory = "1,5Gi"'), "memory_gib_per_process = 1.5",
    ),
    "thousands in quotes": (training('steps = "1,000"'), "steps = 1000"),
    "accumulated gradients": (training("gradient_accumulation_steps = 4"), "micro_batch_size = 128"),
    "Lightning's precision": (training('precision = "bf16-mixed"'), 'precision = "bf16"'),
    "fp16 = true": (training("fp16 = true"), 'precision = "fp16"'),
    "a scheduler's class": (training('lr_scheduler = "OneCycleLR"'), 'schedule = { shape = "one_cycle" }'),
    "a limit in the place of clipping": (training("clipping = 1.0"), "clipping = { max_norm = 1.0 }"),
    "averaging = true": (training("averaging = true"), "averaging = {}"),
    "a switch in quotes": (training('compile = "True"'), "compile = true"),
    "an option of the gate in the training": (training("min_test_rows = 50"), "min_test_rows = 50  # in [gate]"),
    "an option of the task": (training("dropout = 0.1"), "options = { dropout = 0.1 }  # in [model]"),
    "percent in quotes": (section("split", 'test_fraction = "20%"'), "test_fraction = 0.2"),
    "percent as a number": (section("gate", "confidence = 95"), "confidence = 0.95"),
    "alpha": (section("gate", "alpha = 0.01"), "confidence = 0.99"),
    "a condition as a text": (section("gate", 'required = "roc_auc > 0.8"'), "required = { roc_auc = 0.8 }"),
    "val_split": (section("split", "val_split = 0.1"), "validation_fraction = 0.1"),
    "a random split": (section("split", 'method = "random"'), 'method = "hash"'),
    "target": (replaced('label = "clicked"', 'target = "clicked"'), 'label = "clicked"'),
    "no label": (replaced('label = "clicked"\n', ""), 'label = "my_label"  # one of: click_id, clicked, x'),
    "columns in one text": (replaced('["click_id"]', '"click_id, x"'), 'ids = ["click_id", "x"]'),
    "a column in two roles": (replaced('ids = ["click_id"]', 'ids = ["click_id", "clicked"]'), 'ids = ["click_id"]'),
    "a name with a space": (replaced('"clicks"', '"My Clicks"'), 'name = "my-clicks"'),
    "a class behind a dot": (
        replaced('"perennial.tasks.tabular:TabularClassification"', '"digits.Digits"'), 'task = "digits:Digits"'
    ),
    "a section of another name": (replaced("[data]", "[dataset]"), "[data]"),
    "a section of an inner name": (section("optimizer", "weight_decay = 0.1"), "[training.optimizer]"),
    "one allowed feature": (section("expectations", 'leakage_allow = "x"'), 'leakage_allow = ["x"]'),
    "limits the wrong way round": (
        section("expectations.columns.x", "min = 5", "max = 3"), "min = 3\n            max = 5"
    ),
    "days with their unit": (section("triggers", 'max_age_days = "30 days"'), "max_age_days = 30"),
    "momentum that is needed": (
        training('optimizer = { name = "sgd", momentum = 0.0 }'),
        'optimizer = { name = "sgd", momentum = 0.0, nesterov = false }',
    ),
    "type for a table's kind": (
        training('optimizer = { type = "SGD", lr = "0.1" }'), 'optimizer = { name = "sgd", learning_rate = 0.1 }',
    ),
    "numbers in one text": (training('optimizer = { betas = "0.9, 0.99" }'), "optimizer = { betas = [0.9, 0.99] }"),
    "sync_batchnorm": (training("sync_batchnorm = true"), 'normalization = { batch_norm = "sync" }'),
    "memory with its unit": (
        section("resources.cluster", 'memory = "8Gi"'), "memory_gib_per_process = 8",
    ),
    "label smoothing": (training("label_smoothing = 0.1"), f"{REMOVE}: the task's `training_losses` has it"),
    "what nobody knows": (training("frobnicate = 3"), f"{REMOVE}: there is no such option"),
    "an optimizer that there is not": (
        training('optimizer = { name = "lion" }'), 'optimizer = { name = "adamw" }  # the default',
    ),
    "a severity": (section("skeleton", 'severities = { few_rows = "ignore" }'), 'severities = { few_rows = "off" }'),
    "thousands by a letter": (training('steps = "10k"'), "steps = 10000"),
    "weeks where days are asked": (section("triggers", 'max_age = "2 weeks"'), "max_age_days = 14"),
    "hours in words": (section("resources.cluster.budgets", 'queued_hours = "90 minutes"'), "queued_hours = 1.5"),
    "mebibytes": (section("resources.cluster", 'memory = "512Mi"'), "memory_gib_per_process = 0.5"),
    "an optimizer's class": (training('optimizer = { name = "torch.optim.SGD" }'), 'optimizer = { name = "sgd" }'),
    "a schedule in another form": (
        training('scheduler = { type = "cosine", warmup_steps = 100 }'),
        'schedule = { shape = "cosine", warmup_fraction = 0.05 }',
    ),
    "shares by the splits' names": (section("split", "val = 0.1"), "validation_fraction = 0.1"),
    "the training split's share": (
        section("split", "train = 0.7"), f"{REMOVE}: the training split is what validation and test leave",
    ),
    "a limit of a column": (section("expectations.columns.x", "minimum = 0"), "min = 0"),
    "a check among the options": (section("skeleton", 'few_rows = "off"'), 'severities = { few_rows = "off" }'),
    "hyperparameters": (section("hyperparameters", "steps = 600"), "[training]"),
    "a column twice": (replaced("[data]", '[data]\nfeatures = ["x", "x"]'), 'features = ["x"]'),
    "a table of YAML": (
        training("optimizer: {name: sgd, learning_rate: 0.1}"), 'optimizer = {name = "sgd", learning_rate = 0.1}',
    ),
    "the metric's direction": (
        section("gate", "higher_is_better = true"), f"{REMOVE}: the task's `metrics` states each metric's direction",
    ),
    "thousandths of a processor": (
        section("resources.cluster", 'cpus_per_process = "500m"'), "cpus_per_process = 0.5",
    ),
    "a comparison as a value": (section("gate", 'required = { roc_auc = ">0.8" }'), "required = { roc_auc = 0.8 }"),
    "a task's file": (
        replaced('"perennial.tasks.tabular:TabularClassification"', '"tasks/mine.py"'), 'task = "tasks.mine:MyTask"',
    ),
    "an expression for a column": (section("expectations.columns.x", 'regex = "a+"'), 'matches = "a+"'),
    "the last learning rate": (
        training("min_lr = 3e-5"), "schedule = { final_fraction = 0.1 }  # a share of the learning rate",
    ),
    "a folder for checkpoints": (training('checkpoints = { dir = "c" }'), f"{REMOVE}: there is no such option"),
    "momentum of another optimizer": (
        training('optimizer = { name = "adamw", momentum = 0.9 }'), f"{REMOVE}: there is no such option",
    ),
    "a time limit": (section("resources.cluster", 'timeout = "90 min"'), "budgets = { running_hours = 1.5 }"),
    "Python's None": (training("seed = None"), "# seed is not set"),
    "a comment of C": (training("steps = 600 // all"), "steps = 600"),
    "YAML's colon": (training("steps: 600"), "steps = 600"),
    "Python's True": (training("compile = True"), "compile = true"),
    "a table of JSON": (training('optimizer = { "name": "adamw" }'), 'optimizer = { name = "adamw" }'),
    "a text without quotes": (training("strategy = ddp"), 'strategy = "ddp"'),
    "typographic quotes": (replaced('"clicked"', "“clicked”"), 'label = "clicked"'),
    "thousands": (training("steps = 1,000"), "steps = 1000"),
    "Adam in a table": (training('optimizer = { name = "Adam" }'), 'optimizer = { name = "adam" }'),
    "Adam by its name alone": (training('optimizer = "Adam"'), 'optimizer = { name = "adam" }'),
    "Adam's class": (training('optimizer = "torch.optim.Adam"'), 'optimizer = { name = "adam" }'),
    "NAdam": (training('optimizer = "NAdam"'), 'optimizer = { name = "nadam" }'),
    "Adam under another option": (training('optimizer_name = "torch.optim.Adam"'), 'optimizer = { name = "adam" }'),
    "GPUs of a process": (
        section("resources.cluster", "gpus_per_process = 1"), 'accelerator = "nvidia.com/gpu"  # one per process',
    ),
    "a resource of Kubernetes": (
        section("resources.cluster", '"nvidia.com/gpu" = 1'), 'accelerator = "nvidia.com/gpu"  # one per process',
    ),
    "a GPU": (section("resources.cluster", "gpu = 1"), 'accelerator = "nvidia.com/gpu"  # one per process'),
    "no GPU": (section("resources.cluster", "gpu = false"), 'accelerator = ""'),
    "triggers as monitoring": (section("monitoring", "new_rows = 30"), "[triggers]"),
    "triggers as drift": (section("drift", "effect_floor = 0.1"), "[triggers]"),
    "a decimal comma": (training("steps = 1,5"), "steps = 2"),
    "a share with a decimal comma": (section("split", "test_fraction = 0,3"), "test_fraction = 0.3"),
    "numbers without brackets": (training("optimizer.betas = 0.9, 0.99"), "optimizer.betas = [0.9, 0.99]"),
    "a number that no float holds": (training('steps = "1e400"'), "steps = 2000"),
    "a bound on a version": (section("triggers", 'decay_floor = "torch >= 2.1.0"'), "decay_floor = 0.05"),
    "folds": (section("split", "k_folds = 5"), f"{REMOVE}: "),
    "a stratified split": (section("split", "stratify = true"), f"{REMOVE}: "),
    "a list that is not closed": (replaced('["click_id"]', '["click_id"'), 'ids = ["click_id"]'),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    rows = pl.DataFrame({"click_id": range(1000), "clicked": [0, 1] * 500, "x": [0.0] * 1000})
    rows.write_parquet(tmp_path / "data/a.parquet")
    return tmp_path


def mistakes_of(folder, text):
    """Write a contract; return the message of its mistakes, which it must have."""
    path = folder / "contract.toml"
    path.write_text(text)
    with pytest.raises(ContractError) as caught:
        load_contract(path)
    return str(caught.value)


def with_remedy(text, message):
    """The contract with the line to write in the place of the mistake."""
    lines = text.splitlines()
    number = int(re.search(r"contract\.toml:(\d+)", message)[1]) - 1
    written = re.search(r"  write:    ((?:.+\n {12})*.+)", message)[1]
    if written.startswith(REMOVE):
        return "\n".join(lines[:number] + lines[number + 1 :])
    if place := re.search(r"# in \[([\w.]+)\]", written):
        del lines[number]
        header = f"[{place[1]}]"
        lines += [] if header in lines else [header]
        return "\n".join(lines).replace(header, f"{header}\n{written}")
    for line in re.split(r"\n {12}", written):
        key = re.escape(line.partition(" =")[0])
        same = [n for n in range(number, len(lines)) if re.match(rf"{key}\s*[=:]", lines[n])]
        lines[same[0] if same else number] = line
    return "\n".join(lines)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_line_to_write_is_given_and_cures_the_mistake(folder, mistake):
    text, line = MISTAKES[mistake]
    message = mistakes_of(folder, text)
    assert f"  write:    {line}" in message, message
    if "my_label" in line:
        return  # what only the user can complete
    (folder / "contract.toml").write_text(with_remedy(text, message))
    load_contract(folder / "contract.toml")


def test_steps_of_epochs_are_a_formula_where_the_rows_are_not_known(tmp_path):
    message = mistakes_of(tmp_path, training("epochs = 3", "global_batch_size = 100"))
    assert "steps = …  # 3 epochs = 3 x training rows / 100" in message


def test_steps_of_epochs_count_a_batch_under_another_name(folder):
    message = mistakes_of(folder, training("epochs = 5", 'batch_size = "100"'))
    assert "steps = 30  # 5 epochs of about 600 training rows / 100" in message


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        (("max_steps = 10000", "warmup_steps = 500"), "schedule = { warmup_fraction = 0.05 }"),
        (
            ("num_steps = 1000", 'schedule = { type = "linear", warmup_steps = 100 }'),
            'schedule = { shape = "linear", warmup_fraction = 0.1 }',
        ),
        (("lr = 0.1", "min_lr = 0.001"), "schedule = { final_fraction = 0.01 }"),
        (
            ("lr = 0.1", 'schedule = { type = "cosine", eta_min = 0.001 }'),
            'schedule = { shape = "cosine", final_fraction = 0.01 }',
        ),
        (("batch_size = 64", "gradient_accumulation_steps = 4"), "micro_batch_size = 8"),
        (("num_train_epochs = 3", "warmup_steps = 50"), f"{REMOVE}: training.schedule.warmup"),
    ],
)
def test_values_are_converted_by_options_under_other_names(folder, lines, line):
    assert f"  write:    {line}" in mistakes_of(folder, training(*lines))


def test_two_mistakes_of_one_kind_are_both_listed(folder):
    message = mistakes_of(folder, training("patience = 5", "early_stopping = true"))
    assert message.count(REMOVE) == 2
