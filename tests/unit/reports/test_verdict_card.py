"""The verdict card: one word, the number that decided beside its threshold, why, and what for."""

from datetime import datetime

import pytest

from perennial.contracts.gate import (
    Comparison,
    GateReason,
    Interval,
    Measurement,
    Registration,
    Verdict,
)
from perennial.contracts.monitoring import DriftReport, RetrainingDecision, WindowDrift
from perennial.contracts.study import Confirmed, ScientificAnswer, StudyJudgement
from perennial.reports.verdict_card import RunFindings, find_results, verdict_card
from perennial.steps.stored_steps import StoredStep

GAIN = Interval(estimate=0.0118, low=0.0012, high=0.0229)
BETTER = Measurement(
    quantity="improvement in log_loss", value=0.0118, threshold=0.002, interval=GAIN
)
ROWS = Measurement(quantity="rows", value=132, threshold=200)


def reason(held, measured=BETTER, condition="better than the champion"):
    return GateReason(condition=condition, held=held, detail="as measured", measured=measured)


def verdict(*reasons, champion="1"):
    compared = Comparison(
        metric="log_loss", challenger=0.5530, champion=0.5676 if champion else None,
        improvement=GAIN if champion else None, luck=0.0028,
    )  # fmt: skip
    return Verdict(
        promote=all(each.held for each in reasons), summary="Promote or not.", reasons=reasons,
        comparisons=(compared,), baselines={}, champion_version=champion, test_rows=26_089,
        test_blocks=29, performance_reference=(),
    )  # fmt: skip


def registered(*aliases):
    return Registration(
        name="flights", version="2" if aliases else "", aliases=aliases, weights_sha256="a",
        tracking_run_id="b",
    )  # fmt: skip


def decided(retrain):
    return RetrainingDecision(
        retrain=retrain, trigger="drift" if retrain else "none", summary="No retraining: quiet.",
        reasons=("drift: none", "new_data: 5 new rows; triggers.new_rows is not set"), evidence={},
    )  # fmt: skip


def card(status="succeeded", **results):
    return verdict_card(RunFindings(model="flights", status=status, trigger="by hand", **results))


@pytest.mark.parametrize(
    ("results", "word", "outcome"),
    [
        ({"verdict": verdict(reason(True))}, "Promoted", "passed"),
        ({"verdict": verdict(reason(True)), "registration": registered("champion")}, "Promoted", "passed"),
        ({"verdict": verdict(reason(True)), "registration": registered()}, "Champion kept", "neutral"),
        ({"verdict": verdict(reason(False))}, "Champion kept", "neutral"),
        ({"verdict": verdict(reason(False), champion="")}, "Not promoted", "neutral"),
        ({"decision": decided(False)}, "Not retrained", "neutral"),
        ({"decision": decided(True), "verdict": verdict(reason(False))}, "Champion kept", "neutral"),
        ({"status": "failed", "verdict": verdict(reason(True))}, "Failed", "failed"),
        ({"status": "cancelled", "decision": decided(True)}, "Cancelled", "warned"),
        ({"status": "running"}, "Running", "neutral"),
        ({}, "Finished", "neutral"),
    ],
)  # fmt: skip
def test_the_badge_is_what_became_of_the_run(results, word, outcome):
    shown = card(**results)
    assert (shown.word, shown.outcome) == (word, outcome)
    assert shown.headline
    assert len(shown.bullets) <= 3
    assert shown.trigger == "by hand"


def test_the_number_that_decided_stands_beside_its_threshold_in_words_and_in_the_chart():
    shown = card(verdict=verdict(reason(False), reason(True, ROWS, "enough test rows")))
    assert shown.headline == (
        "The lower bound of the improvement in log_loss is +0.0012, not above the threshold 0.002."
    )
    drawing, caption = shown.chart
    assert "threshold 0.002" in drawing
    assert "lower bound must be above the threshold" in caption
    assert shown.bullets[0] == (
        "Conditions of the gate: 1 met, 1 not met (better than the champion)."
    )
    assert "version 1 of flights stays champion" in shown.bullets[2]


@pytest.mark.parametrize("aliases", [("champion", "challenger"), ("challenger",), ()])
def test_a_verdict_on_a_champion_that_moved_meanwhile_is_the_one_that_is_shown(aliases):
    again = verdict(reason(bool(aliases[1:])), champion="6")
    made = registered(*aliases).model_copy(update={"judged_again": again})
    first, last = (
        StoredStep(step=step, status="finished", began=began, results={name: each.to_json()})
        for began, (step, name, each) in enumerate(
            [
                ("evaluate_model", "verdict", verdict(reason(True), champion="1")),
                ("register_model", "registration", made),
            ]
        )
    )
    shown = verdict_card(find_results([first, last], "flights", "succeeded"))
    expected = {
        ("champion", "challenger"): "Version 2 of flights is champion in place of version 6",
        ("challenger",): "Version 2 was registered, and not promoted: version 6 of flights stays",
        (): "Nothing was registered: version 6 of flights stays champion.",
    }
    assert shown.word == ("Promoted" if "champion" in aliases else "Champion kept")
    assert shown.bullets[2].startswith(expected[aliases])


def test_another_condition_that_decided_is_drawn_instead():
    shown = card(verdict=verdict(reason(True), reason(False, ROWS, "enough test rows")))
    assert shown.headline == "132 rows; at least 200 needed."
    assert "threshold 200" in shown.chart[0]


def test_raw_and_adjusted_difference_are_in_one_row_with_their_gap():
    figures = {
        name: (value, note) for name, value, note in card(verdict=verdict(reason(False))).figures
    }
    assert figures["raw difference"][0] == "+0.0146"
    value, note = figures["adjusted difference"]
    assert value == "+0.0118 [+0.0012, +0.0229]"
    assert "without +0.0028" in note
    assert figures["threshold"][0] == "0.002"


def test_monitoring_shows_each_window_with_the_threshold():
    windows = [
        WindowDrift(start=datetime(2026, 1, day), rows=10, max_z_score=z, threshold=3.5, alarmed=z > 3.5)
        for day, z in ((1, 2.0), (8, 4.0))
    ]  # fmt: skip
    drift = DriftReport(
        champion_version="1", calibration="blocks", windows=tuple(windows), new_rows=20
    )
    shown = card(decision=decided(False), drift=drift)
    assert "largest z: 4 at 2026-01-08 00:00" in shown.chart[0]
    assert shown.chart[1] == "1 of 2 windows are above the threshold."
    assert shown.bullets == ("drift: none",), "a trigger that is not used says nothing"


def test_a_failure_names_step_problem_evidence_action_and_log():
    error = (
        "the folder is empty\n  evidence: 0 files in data\n  to do:    put files there\nTraceback"
    )
    shown = card("failed", step="snapshot_data", error=error, go_on="Log: /tmp/log")
    assert shown.headline == "snapshot_data failed: the folder is empty"
    assert shown.bullets == ("Evidence: 0 files in data", "To do: put files there", "Log: /tmp/log")
    assert shown.chart is None


def test_a_stopped_run_names_who_stopped_it_and_how_it_goes_on():
    shown = card("cancelled", step="train_model", cancelled_by="anna", go_on="Run it again.")
    assert shown.headline == "The run was stopped at train_model by anna."
    assert shown.bullets == ("Nothing was promoted.", "Run it again.")


def judged(decision, low, high):
    compared = Confirmed(
        trial=5, against=0, test=0.06, test_against=0.09, degrees=29.0, decision=decision,
        improvement=Interval(estimate=(low + high) / 2, low=low, high=high), seed_error=0.001,
        data_error=0.01, text="trial 5 improves on the baseline",
    )  # fmt: skip
    return StudyJudgement(
        study="a", model="flights", snapshot="b", metric="log_loss", decision=decision,
        winner=5 if decision == "adopt" else None, confidence=0.95, comparisons=(compared,),
        answers=(ScientificAnswer(option="training.steps", text="60 is better than 1"),),
        summary="trial 5 improves on the baseline by 0.03",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("decision", "interval", "word", "outcome", "action"),
    [
        ("adopt", (0.01, 0.05), "Adopt", "passed", "perennial study adopt"),
        ("reject", (-0.05, -0.01), "Reject", "neutral", "keeps its values"),
        ("inconclusive", (-0.01, 0.05), "Inconclusive", "neutral", "would settle it"),
    ],
)
def test_a_study_ends_with_its_verdict_and_the_finalists(decision, interval, word, outcome, action):
    shown = card(study=judged(decision, *interval))
    assert (shown.word, shown.outcome) == (word, outcome)
    assert shown.headline == "Trial 5 improves on the baseline by 0.03."
    assert shown.bullets[0] == "60 is better than 1."
    assert action in shown.bullets[-1]
    assert "trial 5" in shown.chart[0]


def test_a_study_that_compared_nothing_has_no_chart():
    nothing = judged("inconclusive", 0.0, 0.0).model_copy(update={"comparisons": ()})
    assert card(study=nothing).chart is None
    assert card(status="failed", study=nothing).word == "Failed"
