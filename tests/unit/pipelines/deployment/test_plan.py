"""From any state, the plan leads to one newest schedule; what is paused or running stays so."""

from datetime import UTC, datetime, timedelta

import pytest

from deployments import contract, profile
from perennial.clients.pipeline_api import PipelineVersion, Schedule
from perennial.deployment.desired import desire
from perennial.deployment.plan import (
    Observed,
    plan,
    plan_warnings,
)

START = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def desired():
    return desire(contract(), profile())


@pytest.fixture(scope="module")
def other():
    return desire(contract(), profile(schedules={"monitoring": "0 4 * * *"}))


def observed(desired, *schedules, busy=()):
    versions = {
        pipeline.name: PipelineVersion(pipeline.name, pipeline.version)
        for pipeline in desired.pipelines
    }
    ids = {name: name for name in versions}
    return Observed(ids, versions, "e", tuple(schedules), frozenset(busy))


def scheduled(desired, number, *, enabled=True, description=None):
    wanted = desired.schedules["monitoring"]
    return Schedule(
        schedule_id=f"s{number}",
        name=wanted.name,
        description=wanted.description if description is None else description,
        enabled=enabled,
        cron=wanted.cron,
        created_at=START + timedelta(hours=number),
        parameters=wanted.parameters,
    )


def texts(desired, state):
    return [action.text for action in plan(desired, state)]


def created(desired, suffix=""):
    wanted = desired.schedules["monitoring"]
    return f"create the schedule {wanted.name!r} ({wanted.cron[2:]}){suffix}"


def disabled(schedule):
    return f"disable the older schedule {schedule.name!r} of {schedule.created_at:%Y-%m-%d %H:%M}"


def deleted(schedule):
    return f"delete the older schedule {schedule.name!r} of {schedule.created_at:%Y-%m-%d %H:%M}"


def test_on_an_empty_server_everything_is_created_in_order(desired):
    verbs = [text.partition(" ")[0] for text in texts(desired, Observed())]
    assert verbs == ["create", "upload", "create", "upload", "create", "create"]


def test_what_is_as_it_should_be_needs_nothing(desired):
    assert plan(desired, observed(desired, scheduled(desired, 1))) == []


def test_a_change_creates_the_new_one_before_the_old_one_goes(desired, other):
    old = scheduled(other, 1)
    planned = texts(desired, observed(desired, old))
    assert planned == [created(desired), disabled(old), deleted(old)]


def test_a_schedule_with_a_run_under_way_is_disabled_and_kept(desired, other):
    old, new = scheduled(other, 1), scheduled(desired, 2)
    state = observed(desired, old, new, busy=["s1"])
    assert texts(desired, state) == [disabled(old)]
    assert "until its run is over" in " ".join(plan_warnings(desired, state))


def test_a_paused_schedule_stays_paused_and_a_warning_reports_it(desired):
    state = observed(desired, scheduled(desired, 1, enabled=False))
    assert plan(desired, state) == []
    assert "is paused and stays so" in " ".join(plan_warnings(desired, state))


def test_the_successor_of_a_paused_schedule_is_paused(desired, other):
    planned = texts(desired, observed(desired, scheduled(other, 1, enabled=False)))
    assert planned[0] == created(desired, ", paused as the one before")


def test_going_back_to_an_earlier_content_creates_a_new_schedule(desired, other):
    before, now = scheduled(desired, 1, enabled=False), scheduled(other, 2)
    planned = texts(desired, observed(desired, before, now, busy=["s1"]))
    assert planned == [created(desired), disabled(now), deleted(now)]


def test_of_two_equal_ones_the_newest_is_kept(desired):
    first, second = scheduled(desired, 1), scheduled(desired, 2)
    planned = texts(desired, observed(desired, first, second))
    assert planned == [disabled(first), deleted(first)]


def test_a_schedule_that_is_no_longer_wanted_goes(desired):
    nothing = desire(contract(), profile(schedules={"monitoring": ""}))
    old = scheduled(desired, 1)
    assert texts(nothing, observed(nothing, old)) == [disabled(old), deleted(old)]


def test_a_schedule_made_by_hand_is_left_alone_and_mentioned(desired):
    mine = scheduled(desired, 1, description="nightly, by the analysts")
    state = observed(desired, mine, scheduled(desired, 2))
    assert plan(desired, state) == []
    assert "made by hand" in " ".join(plan_warnings(desired, state))


@pytest.mark.parametrize(
    ("sections", "contracted"),
    [
        ({"schedules": {"monitoring": "0 5 * * *"}}, contract()),
        ({"pods": {"service_account": "someone-else"}}, contract()),
        ({"stores": {"store_uri": "s3://perennial/elsewhere"}}, contract()),
        ({}, contract(uri="s3://perennial/other-flights")),
    ],
)
def test_everything_that_a_run_depends_on_makes_another_schedule(desired, sections, contracted):
    changed = desire(contracted, profile(**sections))
    assert changed.schedules["monitoring"].digest != desired.schedules["monitoring"].digest
