import pytest

from perennial.engine.resilience.watchdog import Hang, behind, describe, read_hangs


def at(rank, step=7, collectives=21) -> Hang:
    return Hang(rank=rank, step=step, phase="update", collectives=collectives)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([at(0), at(1, collectives=20), at(2)], {1}),
        ([at(0), at(1), at(2, step=6, collectives=25)], {2}),
        ([at(0), at(1), at(2)], set()),
        ([at(0), at(2)], {1}),
        ([at(0, collectives=20), at(1, collectives=20), at(2)], {0, 1}),
    ],
    ids=["fewer collectives", "fewer steps", "equal", "no sign", "two"],
)
def test_the_rank_that_the_others_wait_for_is_named(seen, expected, tmp_path):
    assert behind(seen, 3) == expected
    for each in seen:
        (tmp_path / f"hang-rank-{each.rank}.json").write_text(each.to_json())
    text = describe(read_hangs(tmp_path), 3)
    names = ", ".join(map(str, sorted(expected)))
    assert (f"rank {names} is behind" in text) is bool(expected)
    assert ("reports no progress" in text) is (len(seen) < 3)
    assert ("network and storage" in text) is (not expected)
