from datetime import UTC, datetime, timedelta

import pytest

from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.gate import BlockPerformance
from perennial.contracts.monitoring import DriftReport, Reference, WindowDrift
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.triggers import TriggersSection
from perennial.decide_retraining.policy import decide
from perennial.detect_drift.comparison import conclude
from perennial.detect_drift.performance import LossLimit
from perennial.detect_drift.report import summary_of, write_report
from perennial.detect_drift.windows import Chosen
from perennial.registry.trigger_state import TriggerState

TRIGGERS = TriggersSection()
LIMIT = LossLimit(mean=0.5, spread=0.05, limit=0.65, blocks=8)


@pytest.fixture
def weeks(block):
    return [block(i, {"x": [1.0, 2.0]}, rows=200) for i in range(20)]


@pytest.fixture
def current(weeks):
    return Snapshot(
        data=DataSection(uri="d", label="y", time="t"), split=SplitSection(), files=(),
        columns={}, rows=2000, split_rows={}, time_max=weeks[15].end,
    )  # fmt: skip


@pytest.fixture
def reference(weeks):
    held_out = tuple(BlockPerformance(start=w.start, rows=9, loss=0.5) for w in weeks[:8])
    return Reference(
        snapshot_digest="", time_max=weeks[11].end, rows=1500, blocks=tuple(weeks[:12]),
        performance=held_out,
    )  # fmt: skip


@pytest.fixture
def concluded(weeks, current, reference):
    def conclude_on(alarms, decays=(), limit=LIMIT, blocks=12, triggers=TRIGGERS):
        decays = [*decays, *[False] * (len(alarms) - len(decays))]
        windows = tuple(
            WindowDrift(
                start=week.start, end=week.end, rows=2, max_z_score=4.0, threshold=3.0,
                columns=(), alarmed=alarmed, loss=None if decayed is None else 0.6,
                loss_z_score=None if decayed is None else 2.0, decayed=bool(decayed),
            )
            for week, alarmed, decayed in zip(weeks[12:], alarms, decays, strict=False)
        )  # fmt: skip
        chosen = Chosen(
            tuple(weeks[:blocks]), windows=tuple(weeks[12 : 12 + len(alarms)]), notes=("a note",)
        )
        return conclude(
            "3", current, reference, chosen=chosen, windows=windows, measured=None, limit=limit,
            triggers=triggers,
        )  # fmt: skip

    return conclude_on


@pytest.mark.parametrize("has_times", [True, False])
def test_a_champion_of_data_without_times_grows_old_all_the_same(
    concluded, current, reference, weeks, has_times
):
    object.__setattr__(reference, "time_max", None)
    if not has_times:
        object.__setattr__(current, "time_max", None)
        assert concluded([]).new_days == 0.0
        return
    object.__setattr__(current, "time_min", weeks[0].start)
    report, limit = concluded([]), TriggersSection(max_age_days=90)
    assert report.new_days == 112.0
    decided = decide(current, report, TriggerState(), limit, now=datetime.now(UTC))
    assert (decided.retrain, decided.trigger) == (True, "schedule")


@pytest.mark.parametrize(
    ("alarms", "drifted"),
    [
        ([False, False], False),
        ([True], False),
        ([False, True], False),
        ([True, False, True], False),
        ([True, True], True),
        ([False, True, True], True),
        ([True, True, False], False),
    ],
)
def test_one_alarm_warns_and_two_in_a_row_are_drift(concluded, alarms, drifted):
    assert concluded(alarms).drifted is drifted


@pytest.mark.parametrize(
    ("decays", "decayed"),
    [([True, True], True), ([True, None, True, None], True), ([True, None, False], False)],
    ids=["two", "unlabelled windows between", "recovered"],
)
def test_windows_without_labels_neither_break_nor_make_a_row(concluded, decays, decayed):
    report = concluded([False] * len(decays), decays)
    assert report.decayed is decayed
    assert not report.drifted


def test_growth_is_counted_from_the_champions_snapshot(concluded):
    report = concluded([False])
    assert (report.new_rows, report.new_days) == (500, 28.0)


def test_growth_is_counted_although_the_time_columns_type_changed(concluded, current):
    assert current.time_max.tzinfo is None
    object.__setattr__(current, "time_max", current.time_max.replace(tzinfo=UTC))
    assert concluded([False]).new_days == 28.0


@pytest.mark.parametrize(
    ("arguments", "calibration", "note"),
    [
        ({"alarms": [True]}, "blocks", "a note"),
        ({"alarms": [True], "blocks": 4}, "none", "minimum 5"),
        (
            {"alarms": [True], "triggers": TriggersSection(season_days=365)},
            "none",
            "covers 84 days",
        ),
        ({"alarms": [True], "limit": None}, "blocks", "performance was not judged"),
        (
            {"alarms": [True, True], "decays": [None]},
            "blocks",
            "1 of 2 windows have too few labels",
        ),
        ({"alarms": []}, "none", "a note"),
    ],
)
def test_skipped_comparisons_have_a_note(concluded, arguments, calibration, note):
    report = concluded(**arguments)
    assert report.calibration == calibration
    assert any(note in output for output in report.notes)


def test_blocks_of_few_rows_are_skipped(concluded, weeks):
    thin = [week.model_copy(update={"rows": 12}) for week in weeks]
    why = Chosen(tuple(thin[:12]), tuple(thin[12:]), ()).reason_to_skip(TRIGGERS)
    assert "have 12 rows in the median, minimum 20" in why


def test_decay_is_evaluated_where_drift_cannot_be(concluded, tmp_path):
    report = concluded([False, False], [True, True], blocks=4)
    write_report(tmp_path / "page.html", report, TRIGGERS)
    assert 'name="perennial-outcome" content="warned"' in (tmp_path / "page.html").read_text()
    assert (report.calibration, report.decayed) == ("none", True)
    summary = summary_of(report, TRIGGERS)
    assert summary.startswith("Drift not judged: the champion's snapshot has 4 complete blocks")
    assert "performance decay in the newest 2 windows" in summary


@pytest.mark.parametrize(
    ("alarms", "decays", "message"),
    [
        ([False, False], [], "No drift in 2 windows; no performance decay in 2 windows."),
        ([True, False], [], "Drift in 1 of 2 windows, but not in the newest 2 in a row;"),
        ([True, True, True], [], "Drift in the newest 3 windows, since 2024-03-28;"),
        ([False, False], [True, True], "performance decay in the newest 2 windows, since"),
        ([False], [None], "performance not judged."),
        ([], [], "Not judged: a note."),
    ],
)
def test_the_summary_is_a_sentence(concluded, alarms, decays, message):
    assert message in summary_of(concluded(alarms, decays), TRIGGERS)


def test_without_a_champion_all_rows_are_new(current):
    report = DriftReport(champion_version="", calibration="none", new_rows=current.rows)
    assert report.champion_version == ""
    assert report.calibration == "none"
    assert report.new_rows == 2000
    assert "No champion yet" in summary_of(report, TRIGGERS)
    assert timedelta(days=report.new_days) == timedelta(0)
