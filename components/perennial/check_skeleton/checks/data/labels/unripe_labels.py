"""Find labels of the newest rows that are not known yet, and count as one of two classes."""

import math

import numpy as np
import polars.selectors as cs

from perennial.check_skeleton.checks.data.signals import Labels, is_ordered, read_labels
from perennial.check_skeleton.subject import Codes, Subject

# So many rows of the class are usual among the newest. By chance there are five once in 200,000.
USUAL, MOST_FOUND = 25, 5
# Among any others: where events come in bursts, or with a season, few are found at other times.
FEWEST_ELSEWHERE = 8
# Of the rows, by age: the newest that are judged, and those that may not be known yet either.
MOST_JUDGED, MOST_UNRIPE = 0.1, 0.25


def describe_unripe_labels(subject: Subject) -> str:
    """Describe the newest rows, of which hardly any has one of two classes; empty if many do.

    Who was billed last week has hardly left by now, whatever happens within two months: until these
    are over, the label is unknown, and a query writes the other class.
    """
    time = subject.time
    if time is None or time not in subject.train_rows.columns:
        return ""
    times = subject.train_rows[time]
    if times.null_count() or not is_ordered(times):
        return ""
    # Rows of one time may be sorted by their label.
    shuffled = np.random.default_rng(0).random(len(times))
    order = np.lexsort((shuffled, times.to_physical().to_numpy()))
    found = (_find_absent(each, order) for each in read_labels(subject))
    for newest, share, value in filter(None, found):
        if _is_followed(subject, order[-newest:]):
            continue
        return (
            f"{share:.1%} of the rows have label {value}, but at most {MOST_FOUND} of the newest "
            f"{newest:,}, from {time} {times[int(order[-newest])]} on"
        )
    return ""


def _is_followed(subject: Subject, newest: Codes) -> bool:
    """Whether a loss may know for how long each row was observed, as that of a survival model.

    This is an amount beside the label, whose largest value in the newest rows is below its median.
    """
    if subject.task.kind != "statistic":
        return False
    columns, data = subject.task.columns, subject.data
    kept = [subject.time or "", *(data.ids if data else ()), columns.label, *columns.features]
    beside = subject.train_rows.select(cs.numeric().exclude(kept))
    amounts = [each.codes for each in read_labels(subject) if each.are_numbers]
    amounts += [column.fill_null(strategy="mean").to_numpy() for column in beside]
    return any(each[newest].max() < np.median(each) for each in amounts)


def _find_absent(labels: Labels, order: Codes) -> tuple[int, float, float] | None:
    """Return how many newest rows hardly have a class, its share among the others, and the class.

    None if there is no such class, or if labels are not of two classes.
    """
    if not labels.are_classes or len(np.unique(labels.codes)) != 2:
        return None
    codes = labels.codes[order]
    known = round(len(codes) * (1 - MOST_UNRIPE))
    for code in np.unique(codes):
        share = float((codes[:known] == code).mean())
        newest = math.ceil(USUAL / share) if share else len(codes)
        if newest > MOST_JUDGED * len(codes):
            continue
        counts = np.convolve(codes == code, np.ones(newest), mode="valid")
        if counts[-1] <= MOST_FOUND and counts[: known - newest + 1].min() >= FEWEST_ELSEWHERE:
            return newest, share, float(code)
    return None
