"""The step `analyze_study`: real checkpoints scored on test rows that no trial was chosen by."""

import json
import tomllib

import pytest

from made_trials import ACTIVATION, RATE
from perennial.analyze_study.step import analyze_study_step
from perennial.contracts.errors import PerennialError
from perennial.contracts.study import StudyJudgement
from perennial.studies.config import StudySection
from perennial.studies.findings import StudyFindings
from perennial.studies.records import Trial

GOOD, BAD = 0.0, 2.0  # weight of the column that means nothing


def analyzed(study):
    """Run the step; return the judgement, the findings and the page."""
    folder = study.folder
    analyze_study_step(
        contract='{"gate":{"resamples":400}}',
        study=str(study.handed_on),
        judgement=str(folder / "judgement"),
        report=str(folder / "report.html"),
        metrics=str(folder / "metrics"),
    )
    judgement = StudyJudgement.read(folder / "judgement")
    findings = StudyFindings.read(folder / "judgement")
    return judgement, findings, (folder / "report.html").read_text()


def test_a_better_finalist_is_adopted_with_its_values(make_study):
    study = make_study()
    study.confirm_all(baseline=BAD, gelu=GOOD, relu=BAD)
    judgement, findings, page = analyzed(study)
    assert judgement.decision == "adopt"
    assert judgement.winner == study.best["gelu"].number
    assert judgement.changes == study.best["gelu"].values
    assert judgement.comparisons[0].improvement.low > 0
    assert findings.best == study.best["gelu"].number
    assert "Adopt" in page
    assert judgement.test_rows > 200
    assert judgement.unit == "day"


def test_a_scientific_question_gets_one_sentence(make_study):
    study = make_study()
    study.confirm_all(baseline=BAD, gelu=GOOD, relu=BAD)
    judgement, _, page = analyzed(study)
    (answer,) = judgement.answers
    assert answer.text.startswith(f"{ACTIVATION}: gelu is better than relu, by ")
    assert answer.text in page


def test_a_null_question_is_inconclusive(make_study):
    study = make_study()
    study.confirm_all(baseline=GOOD, gelu=GOOD, relu=GOOD)
    judgement, _, page = analyzed(study)
    assert judgement.decision == "inconclusive"
    assert judgement.winner is None
    assert judgement.changes == {}
    assert "inconclusive, the difference is within ±" in judgement.answers[0].text
    assert "Inconclusive" in page


def test_an_improvement_that_is_too_small_is_rejected(make_study):
    study = make_study(min_improvement=0.2)
    study.confirm_all(baseline=BAD, gelu=GOOD, relu=BAD)
    assert analyzed(study)[0].decision == "reject"


def test_a_finalist_that_diverges_again_is_not_adopted(make_study):
    study = make_study()
    study.confirm(17, study.baseline, BAD)
    study.confirm(20, study.best["gelu"], GOOD, ("complete", "complete", "infeasible"))
    judgement, _, page = analyzed(study)
    assert judgement.decision == "reject"
    assert "diverged in 1 of 3 confirmations" in page


def test_a_value_whose_confirmation_diverged_is_not_the_answer(make_study):
    study = make_study()
    study.confirm(17, study.baseline, BAD)
    study.confirm(20, study.best["gelu"], GOOD, ("complete", "complete", "infeasible"))
    study.confirm(23, study.best["relu"], BAD)
    judgement, _, page = analyzed(study)
    (answer,) = judgement.answers
    assert answer.text.endswith("inconclusive, gelu diverged in a confirmation")
    assert answer.text in page
    next_study = (study.folder / "store" / study.plan.prefix / "next.study.toml").read_text()
    assert f"{ACTIVATION} is fixed" not in next_study


def test_without_confirmations_nothing_is_decided(make_study):
    study = make_study()
    judgement, findings, _ = analyzed(study)
    assert judgement.decision == "inconclusive"
    assert "the baseline has fewer than two confirmations" in judgement.summary
    assert findings.trials == {"complete": 16}


def test_a_search_without_a_completed_trial_says_how_they_ended_and_why(make_study):
    """It blamed the baseline, which was not confirmed as there was nothing to compare it with."""
    study = make_study()
    change = {"state": "infeasible", "value": None, "reason": "rank 0 failed: not finite\nmore"}
    for item in study.store.list(f"{study.plan.prefix}/trials/"):
        trial = Trial.from_json(study.store.read(item.key))
        if trial.number:
            study.write(trial.model_copy(update=change))
    judgement, _, page = analyzed(study)
    assert judgement.decision == "inconclusive"
    ended = (
        "no trial but the baseline completed (15 infeasible); trial 1: rank 0 failed: not finite"
    )
    assert judgement.summary.endswith(ended)
    assert ended in page


def test_few_test_days_decide_nothing(make_study):
    study = make_study(days=26)
    study.confirm_all(baseline=BAD, gelu=GOOD, relu=BAD)
    judgement, _, _ = analyzed(study)
    assert judgement.decision == "inconclusive"
    assert "fewer than gate.min_test_" in judgement.summary


def test_the_same_records_give_the_same_files(make_study):
    study = make_study()
    study.confirm_all(baseline=BAD, gelu=GOOD, relu=BAD)

    def stored():
        names = ("result.json", "judgement.json", "next.study.toml", "report.html")
        return [study.store.read(f"{study.plan.prefix}/{name}") for name in names]

    analyzed(study)
    first = stored()
    assert None not in first
    analyzed(study)
    assert stored() == first


def test_a_second_study_of_the_same_baseline_has_less_of_the_level(make_study):
    study = make_study()
    study.confirm_all(baseline=BAD, gelu=GOOD, relu=BAD)
    assert analyzed(study)[0].confidence == pytest.approx(0.95)
    again = make_study(seed=2)
    again.confirm_all(baseline=BAD, gelu=GOOD, relu=BAD)
    judgement, _, page = analyzed(again)
    assert judgement.repeats.earlier == 1
    assert judgement.confidence > 0.97
    assert "1 earlier studies" not in page
    assert "1 earlier study" in page


def test_the_next_study_can_be_loaded(make_study):
    study = make_study()
    study.confirm_all(baseline=BAD, gelu=GOOD, relu=BAD)
    analyzed(study)
    text = study.store.read(f"{study.plan.prefix}/next.study.toml").decode()
    section = StudySection.model_validate_json(json.dumps(tomllib.loads(text)["study"]))
    assert RATE in section.nuisance
    assert section.fixed[ACTIVATION] == "gelu", "this question is answered"
    assert section.seed != study.plan.study.seed


def test_a_deleted_training_is_named(make_study):
    study = make_study()
    study.confirm_all(baseline=BAD, gelu=GOOD, relu=BAD)
    for found in study.store.list("training/"):
        study.store.delete(found.key)
    with pytest.raises(PerennialError, match="of a confirmation is gone"):
        analyzed(study)


def test_a_study_without_trials_reports_it(make_study):
    study = make_study()
    for found in study.store.list(f"{study.plan.prefix}/trials/"):
        study.store.delete(found.key)
    with pytest.raises(PerennialError, match="no trial of the study"):
        analyzed(study)
