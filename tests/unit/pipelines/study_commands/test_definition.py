"""Definition of a study: every mistake is named with file, line and remedy before any trial."""

import json

import pytest

from minimal_contract import MINIMAL
from perennial.cli import main
from perennial.contract import Contract, load_contract
from perennial.contracts.data import ModelSection
from perennial.contracts.errors import PerennialError
from perennial.studies.design import MEASURING
from perennial.study_commands.definition import design_warnings, load_study

RATE = "training.optimizer.learning_rate"
RATES = f'[study.nuisance."{RATE}"]\nlog = [1e-4, 1e-1]\n'
GOAL = '[study]\ngoal = "a learning rate"\ntrials = 8\n'


@pytest.fixture
def load(tmp_path):
    """Load a contract whose text ends with the study's."""

    def load(study: str, contract: str = "") -> Contract:
        path = tmp_path / "contract.toml"
        path.write_text(f"{MINIMAL}{contract}\n{study}")
        return load_study(path)

    return load


def nuisance(option, space, more=""):
    return f'{GOAL}{more}{RATES}[study.nuisance."{option}"]\n{space}\n'


@pytest.mark.parametrize(
    "study",
    [
        GOAL + RATES,
        nuisance("training.optimizer.weight_decay", "log = [1e-5, 0.1]"),
        nuisance("model.options.dropout", "linear = [0.0, 0.5]\nstep = 0.1"),
        nuisance(
            "training.micro_batch_size", 'same_as = "training.global_batch_size"\ntimes = 0.5'
        ),
        nuisance("training.clipping.max_norm", "choices = [0.5, 1.0, 10.0]"),
        nuisance("training.optimizer.name", 'choices = ["adamw", "adam"]'),
        nuisance(
            "training.optimizer.momentum",
            'linear = [0.5, 0.99]\nwhen = { "training.optimizer.name" = ["sgd"] }\n'
            '[study.nuisance."training.optimizer.name"]\nchoices = ["adamw", "sgd"]',
        ),
        nuisance("training.averaging.decay", "choices = [0.99, 0.999]"),
        nuisance("training.steps", "log_integer = [100, 1000]"),
        GOAL + 'sampler = "tpe"\npruning = "asha"\n' + RATES,
        GOAL.replace("8", "5") + f'sampler = "grid"\n{RATES}grid_points = 5\n',
        GOAL + RATES + '[study.fixed]\n"model.options.dropout" = 0.1\n',
        GOAL + RATES + "[study.exploit]\ntrials = 4\n",
    ],
)
def test_a_healthy_study_is_loaded(load, study):
    assert load(study).study is not None


SGD = '[study.nuisance."training.optimizer.name"]\nchoices = ["adamw", "sgd"]'
MOMENTUM = "training.optimizer.momentum"
BAD = {
    "empty range": (nuisance("model.options.dropout", "linear = [0.1, 0.1]"), "is empty"),
    "inverted range": (f"{GOAL}{RATES}".replace("1e-4, 1e-1", "1e-1, 1e-4"), "is inverted"),
    "log of zero": (f"{GOAL}{RATES}".replace("1e-4", "0.0"), "above 0"),
    "log of less": (f"{GOAL}{RATES}".replace("1e-4", "-1.0"), "above 0"),
    "log_integer of zero": (nuisance("model.options.depth", "log_integer = [0, 4]"), "1 or more"),
    "nan": (f"{GOAL}{RATES}".replace("1e-4", "nan"), "a finite number"),
    "infinity": (f"{GOAL}{RATES}".replace("1e-1", "inf"), "a finite number"),
    "two spaces": (f"{GOAL}{RATES}linear = [1, 2]", "one of log, linear"),
    "no space": (nuisance("model.options.dropout", "step = 0.1"), "got none"),
    "one choice": (nuisance("model.options.dropout", "choices = [0.1]"), "at least two choices"),
    "a choice twice": (nuisance("model.options.dropout", "choices = [0.1, 0.1]"), "listed twice"),
    "a step that is too large": (
        nuisance("model.options.dropout", "linear = [0.0, 0.5]\nstep = 1.0"),
        "larger than the range",
    ),
    "a step that has no effect": (f"{GOAL}{RATES}step = 0.1", "an effect only with linear"),
    "times that has no effect": (f"{GOAL}{RATES}times = 2.0", "an effect only with same_as"),
    "grid_points without a grid": (f"{GOAL}{RATES}grid_points = 3", 'only with sampler = "grid"'),
    "reduction without pruning": (f"{GOAL}reduction = 4\n{RATES}", "only with pruning"),
    "no hyperparameter": (GOAL, "varies at least one"),
    "two roles": (f'{GOAL}{RATES}[study.scientific."{RATE}"]\nlog = [1e-4, 1e-1]', "two roles"),
    "fixed and searched": (f'{GOAL}{RATES}[study.fixed]\n"{RATE}" = 0.1', "two roles"),
    "same as itself": (
        nuisance("training.micro_batch_size", 'same_as = "training.micro_batch_size"'),
        "same as itself",
    ),
    "a chain of ties": (
        nuisance("training.micro_batch_size", 'same_as = "training.global_batch_size"')
        + '[study.nuisance."training.global_batch_size"]\nsame_as = "training.steps"',
        "name training.steps itself",
    ),
    "processes": (nuisance("resources.num_processes", "choices = [1, 2]"), "where trainings run"),
    "where weights come from": (
        nuisance("model.initial.source", 'choices = ["scratch", "champion"]'),
        "the weights that all trials start with",
    ),
    "an ensemble": (
        nuisance("model.ensemble.champions", "choices = [2, 3]"), "which versions vote"
    ),
    "a training that is continued": (
        nuisance("training.extended_from", "choices = [[10], [20]]"), "which shorter training"
    ),
    "a layout": (
        nuisance("training.parallelism.tensor", "choices = [1, 2]"), "how the work is divided"
    ),
    "a micro-batch": (
        nuisance("training.micro_batch_size", "choices = [64, 128]"), "how the work is divided"
    ),
    "a tie to nothing": (
        nuisance("training.micro_batch_size", 'same_as = "training.batch"'),
        "which the contract does not have",
    ),
    "a condition on what does not vary": (
        nuisance(MOMENTUM, 'linear = [0.5, 0.9]\nwhen = { "training.optimizer.name" = ["sgd"] }'),
        "is not another searched hyperparameter",
    ),
    "a condition that never holds": (
        nuisance(
            MOMENTUM,
            'linear = [0.5, 0.9]\nwhen = { "training.optimizer.name" = ["lion"] }\n' + SGD,
        ),
        "none of its values",
    ),
    "a condition on a range": (
        nuisance("model.options.dropout", f'linear = [0.0, 0.5]\nwhen = {{ "{RATE}" = [1e-3] }}'),
        "a range of real numbers",
    ),
    "conditions that exclude each other": (
        nuisance(
            MOMENTUM,
            'choices = [0.5, 0.9]\nwhen = { "training.optimizer.name" = ["sgd"] }\n' + SGD
            + '\n[study.nuisance."training.optimizer.nesterov"]\nchoices = [true, false]\n'
            f'when = {{ "{MOMENTUM}" = [0.9], "training.optimizer.name" = ["adamw"] }}',
        ),
        "never hold together",
    ),
    "conditions in a circle": (
        nuisance(
            "model.options.dropout", 'choices = [0.1, 0.2]\nwhen = { "model.options.depth" = [1] }\n'
            '[study.nuisance."model.options.depth"]\nchoices = [1, 2]\n'
            'when = { "model.options.dropout" = [0.1] }',
        ),
        "in a circle",
    ),
    "too few trials": (f"{GOAL}{RATES}".replace("8", "1"), "trials = 1 is less than 2 for each"),
    "too few in the second stage": (f"{GOAL}{RATES}[study.exploit]\ntrials = 1", "exploit.trials"),
    "a grid that is too large": (
        f'{GOAL}sampler = "grid"\n{RATES}grid_points = 30', "the grid has 30 points",
    ),
    "a grid without points": (f'{GOAL}sampler = "grid"\n{RATES}', "set grid_points"),
    "more at a time than trials": (f"{GOAL}parallel = 9\n{RATES}", "parallel = 9 is more than"),
    "steps twice": (
        f'{GOAL}steps = 100\n{RATES}[study.nuisance."training.steps"]\ninteger = [1, 9]',
        "steps is set, and training.steps",
    ),
    "pruning of trials of other lengths": (
        nuisance("training.steps", "integer = [100, 900]", 'pruning = "asha"\n'),
        "at the same steps",
    ),
    "pruning without a rung": (f'{GOAL}steps = 100\npruning = "asha"\n{RATES}', "no rung"),
    "an unknown option": (
        nuisance("training.optimizer.lerning_rate", "log = [1e-4, 1e-1]"), "lerning_rate",
    ),
    "an unknown option of the task": (
        nuisance("model.options.widht", "integer = [1, 9]"), "model.options.widht",
    ),
    "a value that the contract refuses": (f"{GOAL}{RATES}".replace("1e-1", "100.0"), "less than 10"),
    "a choice that the contract refuses": (
        nuisance("training.precision", 'choices = ["fp32", "fp8"]'), "fp8",
    ),
    "a choice that the contract refuses, beside other changes": (
        nuisance("training.optimizer.name", 'choices = ["adamw", "lion"]', "steps = 60\n"), "lion",
    ),
    "a value that the task refuses": (
        nuisance("model.options.dropout", "linear = [0.0, 2.0]"), "model.options.dropout",
    ),
    "numbers for a whole number": (nuisance("training.steps", "linear = [1.0, 9.5]"), "9.5"),
    "a combination that the contract refuses": (
        nuisance("training.optimizer.betas", "choices = [[0.9, 0.99], [0.9, 1.5]]"), "1.5",
    ),
    "a fixed value that the contract refuses": (
        f'{GOAL}{RATES}[study.fixed]\n"training.steps" = -1', "greater than or equal to 1",
    ),
    "the metric": (nuisance("training.metric", 'choices = ["loss", "x"]'), "compared by"),
    "the data": (nuisance("data.uri", 'choices = ["a", "b"]'), "the rows that are trained on"),
    "the split": (nuisance("split.test", "choices = [0.1, 0.2]"), "judged by"),
    "the gate": (nuisance("gate.metric", 'choices = ["loss", "auc"]'), "how a challenger is"),
    "the seed": (nuisance("training.seed", "integer = [1, 9]"), "the seed"),
    "the task": (nuisance("model.task", 'choices = ["a:A", "b:B"]'), "which task"),
    "no dotted name": (nuisance("dropout", "linear = [0.0, 0.5]"), "dropout"),
    "no goal": (GOAL.replace("a learning rate", "") + RATES, "goal"),
    "an unknown metric": (f'{GOAL}metric = "f2"\n{RATES}', "f2"),
}  # fmt: skip


@pytest.mark.hostile
@pytest.mark.parametrize(("study", "expected"), BAD.values(), ids=BAD)
def test_a_mistake_is_named_before_any_trial(load, study, expected):
    with pytest.raises(PerennialError) as found:
        load(study)
    error = found.value
    text = f"{error.problem} {error.evidence} {error.action}"
    assert expected in text
    assert "contract.toml" in text or "'f2'" in text
    assert "Traceback" not in text


def test_a_study_lies_in_a_file_of_its_own(tmp_path):
    contract, study = tmp_path / "contract.toml", tmp_path / "next.study.toml"
    contract.write_text(MINIMAL)
    study.write_text(GOAL + RATES)
    assert load_study(contract, study).study.trials == 8
    study.write_text(GOAL + RATES.replace("1e-4", "1e-1"))
    with pytest.raises(PerennialError, match=r"next\.study\.toml:4 [^$]*is empty"):
        load_study(contract, study)
    with pytest.raises(PerennialError, match=r"has no \[study\]") as found:
        load_study(contract)
    assert "--study FILE" in found.value.action


def test_a_training_does_not_depend_on_the_study(tmp_path):
    path = tmp_path / "contract.toml"
    path.write_text(MINIMAL)
    plain = load_contract(path)
    assert "study" not in json.loads(plain.to_json())
    path.write_text(f"{MINIMAL}\n{GOAL}{RATES}")
    assert load_contract(path).digest() == plain.digest()


@pytest.mark.parametrize(
    ("study", "expected"),
    [
        (nuisance("model.options.dropout", "choices = [0.1, 0.2]", 'sampler = "grid"\n')
         .replace("1e-1]", "1e-1]\ngrid_points = 4"), "a grid tries each value"),
        (GOAL.replace("8", "9") + RATES, "power of two: trials = 8 or 16"),
        (f'{GOAL}sampler = "tpe"\n[study.scientific."{RATE}"]\nlog = [1e-4, 1e-1]', "is biased"),
        (GOAL + RATES, ""),
    ],
)  # fmt: skip
def test_what_is_rarely_wanted_is_reported(load, study, expected):
    warnings = design_warnings(load(f"[resources]\nnum_processes = 1\n{study}"))
    assert (expected in "".join(warnings)) if expected else warnings == []


def test_more_processes_than_cores_are_noticed(load, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    (warning,) = design_warnings(load(GOAL + RATES))
    assert "2 trials at a time of 2 processes need 4 cores, and this machine has 3" in warning


def test_check_holds_the_study_against_the_contract_too(tmp_path, capsys):
    path = tmp_path / "contract.toml"
    path.write_text(f"{MINIMAL}\n{GOAL}{RATES}".replace("1e-1", "100.0"))
    assert main(["check", str(path)]) == 2
    assert (
        "the contract refuses training.optimizer.learning_rate = 100.0" in capsys.readouterr().err
    )


def test_what_a_study_may_vary_enters_a_training():
    """Every other option is named with what it determines: it would be varied without effect."""
    options = {*Contract.model_fields, *(f"model.{name}" for name in ModelSection.model_fields)}
    assert options - MEASURING.keys() == {"model", "model.options", "training"}
