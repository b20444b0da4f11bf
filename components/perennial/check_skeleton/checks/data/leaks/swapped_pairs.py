"""Find pairs that are in one split in one order, and in another split in the other order."""

from itertools import combinations

import polars as pl

from perennial.check_skeleton.checks.data.signals import is_plain
from perennial.check_skeleton.registry import Judge
from perennial.check_skeleton.subject import Subject
from perennial.contracts.skeleton import CheckResult

MOST_COLUMNS = 8
FEWEST_SWAPPED = 10
SWAPPED_SHARE = 0.05
# Names of a small pool meet again in either order, equally often; and numbers of two kinds of
# things are equal by chance.
TIMES_REPEATED = 5
BEYOND_CHANCE = 10.0


def judge_swapped_pairs(judge: Judge, subject: Subject) -> CheckResult | None:
    """Fail if validation rows are training rows with two columns exchanged; None if they are not.

    All other columns with single values, and the label, are the same.
    """
    columns, train = subject.task.columns, subject.train_rows
    if train.schema[columns.label].is_nested():
        return None
    single = [name for name in columns.features if not train[name].dtype.is_nested()]
    names = [n for n in single if train.schema[n] == pl.String or train.schema[n].is_integer()]
    sampled = subject.num_rows() / subject.train_split_rows
    for first, second in combinations(names[:MOST_COLUMNS], 2):
        if train.schema[first] != train.schema[second]:
            continue
        same = [n for n in single if n not in (first, second) and is_plain(train[n])]
        on = list(dict.fromkeys([first, second, *same, columns.label]))
        held = subject.validation_rows.select(on).filter(pl.col(first) != pl.col(second))
        known = train.select(on)
        exchanged = held.rename({first: second, second: first})
        swapped, repeated = (
            each.join(known, on=on, how="semi", nulls_equal=True).height
            for each in (exchanged, held)
        )
        share = swapped / max(held.height * sampled, 1)
        possible = known[first].n_unique() * known[second].n_unique()
        chance = known.height / possible * held.height
        least = max(FEWEST_SWAPPED, TIMES_REPEATED * repeated, BEYOND_CHANCE * chance)
        if swapped >= least and share >= SWAPPED_SHARE:
            return judge.failed(
                f"{swapped:,} of {held.height:,} validation rows are rows of the training sample "
                f"with {first} and {second} exchanged, and the same label",
                hint="pairs were doubled by exchanging their sides before the split, or are stored "
                "in both orders: split by a group that holds both, and double training rows only",
                swapped=swapped,
                repeated=repeated,
            )
    return None
