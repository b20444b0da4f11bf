"""Adopting a study: a patch that people review, with provenance; refused where it would mislead."""

import subprocess

import pytest

from made_trials import RATE, made_plan
from perennial.cli import main
from perennial.clients.object_store import open_store
from perennial.contract import load_contract
from perennial.contracts.errors import PerennialError
from perennial.contracts.gate import Interval
from perennial.contracts.study import Confirmed, StudyJudgement
from perennial.registry.promotion import trace_lineage
from perennial.study_commands.adoption import adopt_study
from small_models import stream, write_snapshot

CONTRACT = """\
# Which clicks are real?
[model]
name = "made"
task = "perennial.tasks.tabular:TabularClassification"
options = { hidden = [], dropout = 0.0 } # linear

[data]
uri = "data"
label = "label"
time = "time"
ids = ["row"]
meta = ["region"]

[training]
steps = 100
optimizer = { learning_rate = 1e-3 } # found by hand
"""
DROPOUT = "model.options.dropout"
VALUES = {RATE: 0.01, DROPOUT: 0.1}


@pytest.fixture
def contract(tmp_path):
    path = tmp_path / "contract.toml"
    path.write_text(CONTRACT)
    return path


@pytest.fixture
def snapshot(tmp_path):
    return write_snapshot(tmp_path / "data", stream())


@pytest.fixture
def plan(snapshot, contract):
    space = {RATE: {"log": (1e-4, 1e-1)}, DROPOUT: {"linear": (0.0, 0.5)}}
    found = load_contract(contract).model_dump(mode="json")
    kept = {name: found[name] for name in ("model", "training", "resources")}
    return made_plan(space).model_copy(
        update={
            "contract": kept,
            "baseline": {RATE: 0.001, DROPOUT: 0.0},
            "snapshot": snapshot.digest(),
        }
    )


def judged(plan, decision="adopt", values=VALUES):
    found = Confirmed(
        trial=8,
        against=0,
        values=values,
        test=0.8,
        test_against=0.7,
        improvement=Interval(estimate=0.1, low=0.05, high=0.15),
        seed_error=0.01,
        data_error=0.01,
        degrees=9.0,
        decision=decision,
        text="trial 8 improves on the baseline by 0.1 [0.05, 0.15]",
    )
    return StudyJudgement(
        study=plan.study_digest,
        model="made",
        snapshot=plan.snapshot,
        metric="auc",
        decision=decision,
        winner=8 if decision == "adopt" else None,
        changes=values,
        confidence=0.95,
        comparisons=(found,),
        summary=found.text,
    )


def adopted(contract, plan, snapshot, decision="adopt", *, anyway=False, values=VALUES):
    return adopt_study(contract, plan, judged(plan, decision, values), snapshot, anyway=anyway)


def test_the_patch_keeps_comments_and_order_and_names_the_study(contract, plan, snapshot):
    patch = adopted(contract, plan, snapshot)
    changed = [line for line in patch.lines() if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert changed[:4] == [
        "-options = { hidden = [], dropout = 0.0 } # linear",
        "+options = { hidden = [], dropout = 0.1 } # linear",
        "-optimizer = { learning_rate = 1e-3 } # found by hand",
        "+optimizer = { learning_rate = 0.01 } # found by hand",
    ]
    assert "+[registry]" in changed
    assert plan.study_digest in patch.after
    assert contract.read_text() == CONTRACT, "nothing is written before a person has looked"
    assert patch.notes == ()


def test_the_patch_can_be_applied_by_git(contract, plan, snapshot, tmp_path):
    patch = adopted(contract, plan, snapshot)
    text = "\n".join(patch.lines()) + "\n"
    subprocess.run(["git", "apply", "-"], input=text, text=True, cwd=tmp_path, check=True)
    assert contract.read_text() == patch.after


def test_the_next_trainings_lineage_names_the_study(contract, plan, snapshot, environment):
    adopted(contract, plan, snapshot).write()
    found = load_contract(contract)
    assert found.training.optimizer.learning_rate == 0.01
    assert found.registry.study.study_digest == plan.study_digest
    lineage = trace_lineage(
        environment,
        contract=found.to_json(),
        trigger='{"trigger":"manual"}',
        snapshot_digest="0" * 64,
        tracking_run_id="",
        parent_version="",
    )
    assert lineage.study["study_digest"] == plan.study_digest
    assert lineage.study["trial"] == 8
    assert lineage.study["evidence"] == "auc: trial 8 improves on the baseline by 0.1 [0.05, 0.15]"
    assert set(lineage.study["options"]) == {RATE, DROPOUT}


def test_a_contract_without_a_study_has_none_in_its_lineage(contract):
    assert load_contract(contract).registry.study is None


@pytest.mark.parametrize("decision", ["reject", "inconclusive"])
def test_what_was_not_shown_is_not_adopted(contract, plan, snapshot, decision):
    with pytest.raises(PerennialError, match="did not decide `adopt`"):
        adopted(contract, plan, snapshot, decision)
    forced = adopted(contract, plan, snapshot, decision, anyway=True)
    assert f'decision = "{decision}"' in forced.after


def test_a_contract_that_changed_since_is_refused(contract, plan, snapshot):
    contract.write_text(CONTRACT.replace("1e-3", "2e-3"))
    with pytest.raises(PerennialError, match="has changed since the study") as raised:
        adopted(contract, plan, snapshot)
    assert f"{RATE} was 0.001, is 0.002" in str(raised.value)


def test_what_changed_elsewhere_is_noted(contract, plan, snapshot):
    contract.write_text(CONTRACT.replace("steps = 100", "steps = 200"))
    (note,) = adopted(contract, plan, snapshot).notes
    assert note == "changed since the study, outside of what it varied: training.steps"


@pytest.mark.parametrize(
    ("change", "evidence"),
    [
        (('name = "made"', 'name = "other"'), "model.name"),
        (('meta = ["region"]', ""), r"\[data\]"),
        (("[training]", "[split]\ntest_fraction = 0.3\n\n[training]"), r"\[split\]"),
    ],
)
def test_a_study_of_another_model_or_other_data_is_refused(
    contract, plan, snapshot, change, evidence
):
    contract.write_text(CONTRACT.replace(*change))
    with pytest.raises(PerennialError, match=rf"(?s)of other data.*{evidence}"):
        adopted(contract, plan, snapshot)


def test_values_that_the_contract_has_already_change_nothing(contract, plan, snapshot):
    patch = adopted(contract, plan, snapshot, values={RATE: 0.001, DROPOUT: 0.0})
    assert patch.after == patch.before
    assert "nothing to change" in patch.notes[0]


def test_adopting_twice_changes_nothing_more(contract, plan, snapshot):
    adopted(contract, plan, snapshot).write()
    assert list(adopted(contract, plan, snapshot).lines()) == []


def test_options_that_another_optimizer_lacks_are_removed(contract, plan, snapshot):
    written = "optimizer = { learning_rate = 1e-3, betas = [0.9, 0.95] }"
    contract.write_text(CONTRACT.replace("optimizer = { learning_rate = 1e-3 }", written))
    values = {RATE: 0.1, "training.optimizer.name": "sgd", "training.optimizer.momentum": 0.9}
    patch = adopted(contract, plan, snapshot, values=values)
    assert (
        'optimizer = { learning_rate = 0.1, name = "sgd", momentum = 0.9 } # found' in patch.after
    )


def test_fixed_values_are_adopted_with_the_others(contract, plan, snapshot):
    study = plan.study.model_copy(update={"fixed": {"training.seed": 7}})
    patch = adopted(contract, plan.model_copy(update={"study": study}), snapshot)
    assert "seed = 7" in patch.after
    assert "the conclusion holds for the fixed values" in patch.notes[-1]


def test_the_verb_prints_the_patch_and_writes_it_when_asked(
    contract, plan, snapshot, environment, capsys
):
    store = open_store(environment.store_uri)
    for record in (plan, judged(plan), snapshot):
        store.write(f"{plan.prefix}/{record.file_name}", record.to_json().encode())
    asked = ["study", "adopt", str(contract), "--home", str(contract.parent / "home")]
    assert main(asked) == 0
    printed = capsys.readouterr().out
    assert "+optimizer = { learning_rate = 0.01 } # found by hand" in printed
    assert contract.read_text() == CONTRACT
    assert main([*asked, "--write"]) == 0
    assert "learning_rate = 0.01" in contract.read_text()
    assert main([*asked, "--digest", "abc"]) == 2
    assert "no such study of made" in capsys.readouterr().err


def test_a_study_without_a_verdict_explains_how_to_get_one(
    contract, plan, snapshot, environment, capsys
):
    store = open_store(environment.store_uri)
    store.write(f"{plan.prefix}/{plan.file_name}", plan.to_json().encode())
    assert main(["study", "adopt", str(contract), "--home", str(contract.parent / "home")]) == 2
    assert "has no verdict yet" in capsys.readouterr().err
