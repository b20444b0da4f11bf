"""What steps on a cluster store: the request that started a run is one run's."""

import json

from perennial.steps.stored_steps import StoredRun

TRIGGER = json.dumps({"trigger": "manual", "by": "ada", "reason": "odd", "request": "0" * 16})


def test_a_cloned_run_is_distinguished_from_the_first_one(tmp_path):
    first, clone = (StoredRun(str(tmp_path), run) for run in ("run-1", "run-2"))
    assert first.claim_trigger(TRIGGER) == TRIGGER
    assert first.claim_trigger(TRIGGER) == TRIGGER  # a retry, or the exit task
    marked = json.loads(clone.claim_trigger(TRIGGER))
    assert marked["trigger"] == "clone"
    assert marked["of_run"] == "run-1"
    assert marked["original"] == json.loads(TRIGGER)


def test_triggers_without_a_request_are_left_as_they_are(tmp_path):
    run = StoredRun(str(tmp_path), "run-1")
    for trigger in ('{"trigger":"schedule"}', "not JSON", "[]", '{"request": 7}'):
        assert run.claim_trigger(trigger) == trigger
    assert list(tmp_path.iterdir()) == []
