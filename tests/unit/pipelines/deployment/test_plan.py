"""From any state, the plan leads to one newest schedule; what is paused or running stays so."""

from datetime import UTC, datetime, timedelta

import pytest

from deployments import contract, profile
from perennial.clients.pipeline_records import PipelineVersion, Schedule
from perennial.deployment.desired import desire
from perennial.deployment.plan import (
    CreateSchedule,
    DeleteSchedule,
    DisableSchedule,
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
        pipeline.name: PipelineVersion(pipeline.name, pipeline.version, pipeline.version)
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
        version=PipelineVersion("p", "v", ""),
        parameters=wanted.parameters,
    )


def test_on_an_empty_server_everything_is_created_in_order(desired):
    names = [str(action).partition(" ")[0] for action in plan(desired, Observed())]
    assert names == ["create", "upload", "create", "upload", "create", "create"]


def test_what_is_as_it_should_be_needs_nothing(desired):
    assert plan(desired, observed(desired, scheduled(desired, 1))) == []


def test_a_change_creates_the_new_one_before_the_old_one_goes(desired, other):
    old = scheduled(other, 1)
    actions = plan(desired, observed(desired, old))
    assert actions == [
        CreateSchedule(desired.schedules["monitoring"], paused=False),
        DisableSchedule(old),
        DeleteSchedule(old),
    ]


def test_a_schedule_with_a_run_under_way_is_disabled_and_kept(desired, other):
    old, new = scheduled(other, 1), scheduled(desired, 2)
    state = observed(desired, old, new, busy=["s1"])
    assert plan(desired, state) == [DisableSchedule(old)]
    assert "until its run is over" in " ".join(plan_warnings(desired, state))


def test_a_paused_schedule_stays_paused_and_is_said_to_be(desired):
    state = observed(desired, scheduled(desired, 1, enabled=False))
    assert plan(desired, state) == []
    assert "is paused and stays so" in " ".join(plan_warnings(desired, state))


def test_the_successor_of_a_paused_schedule_is_paused(desired, other):
    actions = plan(desired, observed(desired, scheduled(other, 1, enabled=False)))
    assert actions[0] == CreateSchedule(desired.schedules["monitoring"], paused=True)


def test_going_back_to_an_earlier_content_creates_a_new_schedule(desired, other):
    before, now = scheduled(desired, 1, enabled=False), scheduled(other, 2)
    actions = plan(desired, observed(desired, before, now, busy=["s1"]))
    assert actions == [
        CreateSchedule(desired.schedules["monitoring"], paused=False),
        DisableSchedule(now),
        DeleteSchedule(now),
    ]


def test_of_two_equal_ones_the_newest_is_kept(desired):
    first, second = scheduled(desired, 1), scheduled(desired, 2)
    actions = plan(desired, observed(desired, first, second))
    assert actions == [DisableSchedule(first), DeleteSchedule(first)]


def test_a_schedule_that_is_no_longer_wanted_goes(desired):
    nothing = desire(contract(), profile(schedules={"monitoring": ""}))
    old = scheduled(desired, 1)
    assert plan(nothing, observed(nothing, old)) == [DisableSchedule(old), DeleteSchedule(old)]


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
