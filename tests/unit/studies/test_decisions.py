"""Whole decisions with a known truth: a small version of `benchmarks/study_decisions.py`."""

from benchmarks.study_decisions import flat, read_worlds, simulate


def test_no_study_adopts_what_is_no_improvement():
    """Search, finalists and verdict together, where the baseline is the best point of all."""
    worlds = read_worlds()
    rows = []
    for world in (worlds[0], flat(worlds[0])):
        point = world.best if world.values.any() else world.points[0]
        rows += simulate(world, ("best", point), 8, 30)
    studies = sum(row["studies"] for row in rows)
    assert sum(row["wrong"] * row["studies"] for row in rows) / studies <= 0.05
    assert sum(row["held"] * row["studies"] for row in rows) / studies >= 0.9


def test_a_bad_baseline_is_replaced():
    (world, *_) = read_worlds()
    rows = list(simulate(world, ("median", world.median), 16, 10))
    assert rows[-1]["adopted"] >= 0.2
    assert rows[-1]["wrong"] == 0.0
    assert rows[-1]["optimism"] == rows[0]["optimism"]
