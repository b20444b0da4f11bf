"""The examples' contracts hold, and the two phases of the recipe differ in what the recipe names."""

from pathlib import Path

import pytest

from perennial.contract import load_contract

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.parametrize(
    "contract",
    sorted(EXAMPLES.glob("*/*.toml")),
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_contract_is_valid(contract):
    assert load_contract(contract).model.name


def test_the_two_phases_of_the_recipe_differ_in_regularisation_alone():
    first, second = (
        load_contract(EXAMPLES / "flights" / name).model_dump(mode="json")
        for name in ("overfit.toml", "contract.toml")
    )
    assert {name for name in first if first[name] != second[name]} == {"model", "training"}
    options = [contract["model"]["options"] for contract in (first, second)]
    assert {name for name in options[0] if options[0][name] != options[1][name]} == {
        "hidden", "dropout",
    }  # fmt: skip
    sections = [contract["training"] for contract in (first, second)]
    assert {name for name in sections[0] if sections[0][name] != sections[1][name]} == {
        "steps", "optimizer", "schedule", "evaluate_every_steps",
    }  # fmt: skip
