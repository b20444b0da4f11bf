from datetime import UTC, datetime
from functools import partial

import pytest

from perennial.contracts.block import BlockFile
from perennial.contracts.section import canonical_json
from perennial.contracts.triggers import TriggersSection
from perennial.decide_retraining import policy
from perennial.decide_retraining.step import trigger_evidence
from perennial.registry.trigger_state import TriggerState
from perennial.steps.parameters import CARRIED_BYTES

NOW = datetime(2024, 6, 20, tzinfo=UTC)
decide = partial(policy.decide, now=NOW)
EVERYTHING = {"drifted": True, "decayed": True, "new_rows": 5000, "new_days": 60.0}


@pytest.mark.parametrize(
    ("seen", "settings", "trigger", "message"),
    [
        ({"champion": ""}, {}, "first_model", "there is no champion yet"),
        ({"champion": "", **EVERYTHING}, {"new_rows": 1}, "first_model", "no champion"),
        ({}, {}, "none", "no persistent drift"),
        ({"decayed": True}, {}, "performance", "loss is 0.6100, 4.2 standard deviations"),
        ({"decayed": True}, {"performance": False}, "none", "triggers.performance is off"),
        ({"drifted": True}, {}, "drift", "since 2024-05-23: dest moved by 0.200 (z 8.0)"),
        ({"drifted": True}, {"drift": False}, "none", "triggers.drift is off"),
        ({"new_rows": 5000}, {"new_rows": 5000}, "new_data", "5,000 new rows"),
        ({"new_rows": 4999}, {"new_rows": 5000}, "none", "4,999 new rows since the last training"),
        ({"new_rows": 5000}, {}, "none", "no persistent drift"),
        ({"new_days": 30.0}, {"max_age_days": 30}, "schedule", "30.0 days old by data time"),
        ({"new_days": 29.9}, {"max_age_days": 30}, "none", "29.9 days old by data time, limit 30"),
        ({"new_days": 300.0}, {}, "none", "no persistent drift"),
        (EVERYTHING, {"new_rows": 1, "max_age_days": 1}, "performance", "the champion's loss"),
        (
            EVERYTHING,
            {"new_rows": 1, "max_age_days": 1, "performance": False},
            "drift",
            "features drifted",
        ),
        (
            EVERYTHING,
            {"new_rows": 1, "max_age_days": 1, "performance": False, "drift": False},
            "new_data",
            "new rows",
        ),
    ],
)
def test_the_first_trigger_that_holds_names_the_decision(
    snapshot, report, *, seen, settings, trigger, message
):
    made = decide(snapshot, report(**seen), TriggerState(), TriggersSection(**settings))
    assert (made.retrain, made.trigger) == (trigger != "none", trigger)
    assert message in made.summary


def test_every_trigger_that_holds_is_among_the_reasons(snapshot, report):
    settings = TriggersSection(new_rows=1, max_age_days=1)
    made = decide(snapshot, report(**EVERYTHING), TriggerState(), settings)
    names = [reason.partition(":")[0] for reason in made.reasons]
    assert names == ["performance", "drift", "new_data", "schedule"]


def test_a_trigger_that_is_off_is_still_reported(snapshot, report):
    made = decide(snapshot, report(drifted=True), TriggerState(), TriggersSection(drift=False))
    assert any("triggers.drift is off" in reason for reason in made.reasons)


@pytest.mark.parametrize(
    ("ages", "settings", "held_back_by"),
    [
        ([], {}, []),
        ([14.0], {}, []),
        ([13.9], {}, ["cooldown"]),
        ([-5.0], {}, ["cooldown"]),  # a snapshot older than the last retraining's
        ([0.0], {"cooldown_days": 0}, []),
        ([80, 60, 40, 20], {"max_retrainings": 4}, ["budget"]),
        ([91, 60, 40, 20], {"max_retrainings": 4}, []),
        ([80, 60, 40, 5], {"max_retrainings": 4}, ["cooldown", "budget"]),
        ([80, 60, 40, 20], {"max_retrainings": 4, "budget_days": 70}, []),
    ],
)
def test_cooldown_and_budget_are_measured_in_data_time(
    snapshot, report, past, *, ages, settings, held_back_by
):
    state = TriggerState(retrainings=tuple(past(age) for age in ages))
    made = decide(snapshot, report(drifted=True), state, TriggersSection(**settings))
    assert made.retrain is (not held_back_by)
    assert made.trigger == "drift"
    vetoes = [r for r in made.reasons if r.startswith("blocked by")]
    assert [veto.split()[2].rstrip(":") for veto in vetoes] == held_back_by
    assert ("blocked" in made.summary) is bool(held_back_by)


def test_a_snapshot_is_trained_on_once(snapshot, report, past):
    state = TriggerState(
        retrainings=(past(400, digest=snapshot.digest(), run_id="run-7"), past(300))
    )
    made = decide(snapshot, report(drifted=True), state, TriggersSection())
    assert not made.retrain
    assert "already trained on by run run-7" in made.summary


def test_new_rows_and_age_count_from_the_last_training_even_if_it_lost(snapshot, report, past):
    state = TriggerState(retrainings=(past(20, rows=9500),))
    settings = TriggersSection(new_rows=1000, max_age_days=30)
    seen = report(new_rows=5000, new_days=60.0)
    assert decide(snapshot, seen, TriggerState(), settings).retrain
    made = decide(snapshot, seen, state, settings)
    assert made.trigger == "none"
    assert any("500 new rows" in reason for reason in made.reasons)
    assert any("20.0 days" in reason for reason in made.reasons)


def test_without_a_time_column_duplicates_and_rows_still_protect(snapshot, report, past):
    timeless = snapshot.model_copy(update={"time_max": None})
    settings = TriggersSection(new_rows=1000)
    seen = report(new_rows=5000)
    same = TriggerState(retrainings=(past(None, digest=timeless.digest()),))
    assert not decide(timeless, seen, same, settings).retrain
    recent = TriggerState(retrainings=(past(None, rows=9500),))
    assert not decide(timeless, seen, recent, settings).retrain
    assert decide(timeless, seen, TriggerState(retrainings=(past(None),)), settings).retrain


def of_files(report, *names):
    """The same report about files instead of weeks."""
    windows = tuple(
        report.windows[0].model_copy(
            update={"start": None, "end": None, "files": (BlockFile(path=name, sha256=name),)}
        )
        for name in names
    )
    return report.model_copy(update={"windows": windows})


def test_without_a_time_column_files_say_since_when_and_the_age_is_unknown(snapshot, report):
    timeless = snapshot.model_copy(update={"time_max": None})
    seen = of_files(report(drifted=True, decayed=True), "p7", "p8")
    made = decide(timeless, seen, TriggerState(), TriggersSection(max_age_days=30))
    assert made.retrain
    assert "above its reference, since file p7" in made.summary
    assert "features drifted since file p7: dest moved by 0.200" in made.reasons[1]
    assert made.evidence["alarmed_windows"] == ["file p7", "file p8"]
    quiet = decide(timeless, report(), TriggerState(), TriggersSection(max_age_days=30))
    assert "the age of the last training is unknown without data.time" in quiet.summary
    assert "20" not in quiet.summary


@pytest.mark.parametrize("trigger", ["drifted", "decayed"])
def test_without_a_time_column_the_next_retraining_waits_for_new_files(
    snapshot, report, past, trigger
):
    timeless = snapshot.model_copy(update={"time_max": None})
    first = of_files(report(**{trigger: True}), "p7", "p8")
    made = decide(timeless, first, TriggerState(), TriggersSection())
    state = TriggerState(retrainings=(past(None).model_copy(update={"decision": made}),))
    for names, retrains in (("78", False), ("789", False), ("789a", True), ("9a", True)):
        later = of_files(report(**{trigger: True}), *(f"p{name}" for name in names))
        found = decide(timeless, later, state, TriggersSection())
        assert found.retrain is retrains
        if not retrains:
            assert f"file p8, and {len(names) - 2} of 2 required windows" in found.summary


def test_the_names_of_many_files_can_travel(snapshot, report):
    seen = of_files(report(drifted=True, decayed=True), *(f"{'x' * 150}{i}" for i in range(500)))
    made = decide(snapshot, seen, TriggerState(), TriggersSection())
    assert made.evidence["alarmed_windows"][-1].endswith("499")
    assert len(trigger_evidence(made).encode()) < CARRIED_BYTES


def test_no_veto_is_shown_when_nothing_triggers(snapshot, report, past):
    made = decide(snapshot, report(), TriggerState(retrainings=(past(1),)), TriggersSection())
    assert made.summary == (
        "No retraining: no persistent decay in 2 labelled windows; no persistent drift in 2 windows."
    )
    assert not any("blocked" in reason for reason in made.reasons)


def test_the_evidence_holds_the_numbers_and_is_json(snapshot, report):
    made = decide(snapshot, report(drifted=True), TriggerState(), TriggersSection())
    assert made.evidence["alarmed_windows"] == ["2024-05-23", "2024-05-30"]
    assert made.evidence["newest_window"]["columns"][0]["column"] == "dest"
    assert "dest" in canonical_json(made.evidence)


def test_the_trigger_of_a_thousand_alarmed_windows_can_travel(snapshot, report):
    seen = report(drifted=True, decayed=True)
    many = seen.model_copy(update={"windows": seen.windows * 1000})
    made = decide(snapshot, many, TriggerState(), TriggersSection())
    assert len(trigger_evidence(made).encode()) < CARRIED_BYTES
    assert made.evidence["windows"] == 2000


def test_without_a_retraining_the_cooldown_is_stated_in_words(snapshot):
    blocks = policy.find_retraining_blocks(snapshot, TriggerState(), TriggersSection(), now=NOW)
    details = {block.name: block.detail for block in blocks}
    assert details["cooldown"] == "there was no retraining yet, cooldown 14"
    assert "inf" not in " ".join(details.values())


def test_a_row_in_the_far_future_blocks_no_retraining_and_is_reported(snapshot, report, past):
    wrong = snapshot.model_copy(update={"time_max": datetime(2286, 11, 20)})
    settings = TriggersSection(max_age_days=30)
    recent, old = (TriggerState(retrainings=(past(days),)) for days in (-5, 20))
    assert not decide(wrong, report(drifted=True), recent, settings).retrain
    made = decide(wrong, report(drifted=True, new_days=90.0), old, settings)
    assert made.retrain
    assert (
        "WARNING: the newest row is of 2286-11-20 00:00, which lies in the future" in made.summary
    )
    assert any("34.0 days old" in each.detail for each in blocks_of(wrong, old))
    assert "future" not in decide(snapshot, report(drifted=True), old, settings).summary


def test_retrainings_recorded_in_the_future_by_earlier_versions_block_nothing(
    snapshot, report, past
):
    state = TriggerState(retrainings=tuple(past(-90_000, run_id=f"run-{i}") for i in range(9)))
    made = decide(snapshot, report(drifted=True), state, TriggersSection())
    assert made.retrain
    assert "ignore 9 retrainings recorded at a time in the future, the last by run run-8" in (
        made.summary
    )


def blocks_of(snapshot, state):
    return policy.find_retraining_blocks(snapshot, state, TriggersSection(), now=NOW)


def test_ages_survive_a_time_column_that_gets_a_zone(snapshot, past):
    zoned = snapshot.model_copy(update={"time_max": snapshot.time_max.replace(tzinfo=UTC)})
    cooldown = blocks_of(zoned, TriggerState(retrainings=(past(20),)))[1]
    assert not cooldown.holds
    assert "20.0 days old" in cooldown.detail
