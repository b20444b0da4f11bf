"""Cron expressions: five fields as people write them, six as the pipeline server wants them."""

import re

FIELDS = (
    ("minute", 0, 59), ("hour", 0, 23), ("day of the month", 1, 31),
    ("month", 1, 12), ("day of the week", 0, 6),
)  # fmt: skip
NAMES = {
    "month": ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    "day of the week": ["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
}


def check_cron(text: str) -> str:
    """The expression, if it has five good fields.

    Raises:
        ValueError: the message names the field.
    """
    fields = text.split()
    if len(fields) != len(FIELDS):
        raise ValueError(
            f"{text!r} has {len(fields)} fields, not five: minute, hour, day of the month, month, "
            'day of the week, such as "0 3 * * *" for three at night'
        )
    for field, (name, low, high) in zip(fields, FIELDS, strict=True):
        for part in field.split(","):
            _check_part(part, name, low, high)
    return " ".join(fields)


def with_seconds(text: str) -> str:
    """Six fields, as the server's scheduler reads them: it takes five for something else."""
    return f"0 {check_cron(text)}"


def _check_part(part: str, name: str, low: int, high: int) -> None:
    matched = re.fullmatch(r"(\*|\w+(?:-\w+)?)(?:/(\d+))?", part)
    if matched is None:
        raise ValueError(f"{part!r} is not valid as {name}; write a number, a range, * or */N")
    span, every = matched.groups()
    if every is not None and not 1 <= int(every) <= high:
        raise ValueError(f"{part!r}: steps of a {name} lie between 1 and {high}")
    numbers = [] if span == "*" else [_number(end, name, low, high) for end in span.split("-")]
    if numbers != sorted(numbers):
        raise ValueError(f"{part!r}: the range of a {name} must not run backwards")


def _number(text: str, name: str, low: int, high: int) -> int:
    if text.lower() in NAMES.get(name, ()):
        return NAMES[name].index(text.lower()) + low
    if not text.isdigit() or not low <= int(text) <= high:
        raise ValueError(f"{text!r} is not valid as {name}; it lies between {low} and {high}")
    return int(text)
