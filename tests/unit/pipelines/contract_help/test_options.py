"""Every option of a contract is read from the sections that check it, and explained."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from perennial.cli import main
from perennial.contract import Contract
from perennial.contract_help.options import options_in
from perennial.contracts.section import Section


def shown(capsys, *arguments):
    assert main(["options", *arguments]) == 0
    return capsys.readouterr().out


def test_advanced_options_are_shown_when_they_are_asked_for(capsys):
    section = shown(capsys, "training.loading")
    assert "training.loading.workers" in section
    assert "training.loading.pin_memory" not in section
    assert "5 advanced options are not shown: perennial options training.loading --all" in section
    assert "training.loading.pin_memory" in shown(capsys, "training.loading", "--all")
    assert shown(capsys, "training.loading", "--all") == shown(
        capsys, "training.loading", "--advanced"
    )
    assert "default: not set" in shown(capsys, "training.loading.pin_memory")
    assert "resources.cluster.budgets.stuck_minutes" in shown(capsys, "resources.cluster.budgets")


def test_all_options_are_listed_without_a_section(capsys):
    options = {option.path: option.is_advanced for option in options_in(Contract)}
    summary = f"{len(options)} options, {sum(options.values())} of them advanced"
    assert summary in shown(capsys)
    heads = {line.split()[0] for line in shown(capsys, "--all").splitlines() if line[:1].strip()}
    assert heads == set(options)


def test_no_required_option_is_advanced():
    assert [
        each.path for each in options_in(Contract) if each.is_advanced and not each.default
    ] == []


def test_every_option_of_the_contract_is_documented():
    options = list(options_in(Contract))
    assert len(options) > 150
    assert [option.path for option in options if len(option.documentation) < 10] == []


class Parent(Section):
    inherited: int
    """Explained where it is declared."""


class Child(Parent):
    """A kind."""

    kind: Literal["child"]
    inherited: int = 3


class Other(Section):
    """Another kind."""

    kind: Literal["other"] = "other"
    forgotten: int = 1


class Whole(Section):
    choice: Child | Other = Other()
    """One of them."""
    empty: str = ""
    shares: Annotated[tuple[Annotated[float, Field(ge=0.0, lt=1.0)], ...], Field(min_length=2)]
    """Some shares."""
    limits: dict[str, Parent] = Field(default_factory=dict)
    """By name."""


def test_an_option_without_documentation_shows():
    undocumented = {option.path for option in options_in(Whole) if not option.documentation}
    assert undocumented == {"empty", "choice.forgotten"}


def test_documentation_is_inherited_and_kinds_are_distinguished():
    found = [
        (option.path, option.chosen, option.variant, option.default) for option in options_in(Whole)
    ]
    assert found == [
        ("choice", "", "", 'kind = "other"'),
        ("choice.kind", '"child"', "", ""),
        ("choice.inherited", "", 'kind = "child"', "3"),
        ("choice.kind", '"other"', "", '"other"'),
        ("choice.forgotten", "", 'kind = "other"', "1"),
        ("empty", "", "", '""'),
        ("shares", "", "", ""),
        ("limits", "", "", "{}"),
        ("limits.NAME.inherited", "", "", ""),
    ]
    documents = {option.path: option.documentation for option in options_in(Whole)}
    assert documents["choice.inherited"] == "Explained where it is declared."
    assert [option.type for option in options_in(Whole) if option.path == "shares"] == [
        "list of 2 or more: number ≥ 0 and < 1"
    ]


def test_without_a_path_the_sections_are_listed(capsys):
    lines = shown(capsys).splitlines()
    assert [line.split()[0] for line in lines[:13]] == list(Contract.model_fields)
    assert lines[3].endswith("Limits that the data must meet.")


def test_a_single_option_shows_type_default_and_purpose(capsys):
    lines = shown(capsys, "training.memory.activation_checkpointing").splitlines()
    assert lines[:2] == [
        "training.memory.activation_checkpointing",
        '    "none", "full" or "selective"; default: "none"',
    ]
    assert "forward pass again" in " ".join(lines[2:])


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        ("training.optimizer.name", ["adamw", "adam", "nadam", "sgd", "adafactor", "adamw8bit"]),
        (
            "training.schedule.shape",
            ["constant", "step", "linear", "cosine", "wsd", "one_cycle"],
        ),
        ("training.clipping.method", ["norm", "value", "adaptive", "none"]),
    ],
)
def test_each_kind_of_a_section_is_explained(capsys, path, kinds):
    section = shown(capsys, path.rpartition(".")[0])
    heads = [line for line in shown(capsys, path).splitlines() if line.startswith(path)]
    assert [line.split('"')[1] for line in heads] == kinds
    assert all(head in section for head in heads)
    assert sum("(the default)" in head for head in heads) == 1


def test_an_option_of_some_kinds_names_them(capsys):
    assert shown(capsys, "training.optimizer.momentum").splitlines()[0] == (
        'training.optimizer.momentum   (with name = "sgd")'
    )


def test_the_users_own_keys_stand_for_any(capsys):
    assert shown(capsys, "expectations.columns.dep_delay.min") == shown(
        capsys, "expectations.columns.NAME.min"
    )


def test_zero_stages_are_told_by_name(capsys):
    printed = " ".join(shown(capsys, "training.parallelism.zero_stage").split())
    assert "ZeRO" in printed
    for stage, state in ((1, "the optimizer state"), (2, "gradients"), (3, "weights")):
        assert f"{stage}, {state}" in printed
    assert "`ddp`" in printed
    assert "`fsdp`" in printed


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("zero_stage", "training.parallelism.zero_stage"),
        ("training.zero_stge", "training.parallelism.zero_stage"),
        ("trainin.optimizer", "training.optimizer"),
        ("training.optimizer.lerning_rate", "training.optimizer.learning_rate"),
    ],
)
def test_an_unknown_option_is_an_error_with_the_nearest(capsys, wrong, right):
    assert main(["options", wrong]) == 2
    printed = capsys.readouterr().err
    assert f"no option {wrong!r}" in printed
    assert f"`perennial options {right}`" in printed


def test_what_resembles_nothing_is_an_error_too(capsys):
    assert main(["options", "xyzzy"]) == 2
    assert "`perennial options` lists" in capsys.readouterr().err
