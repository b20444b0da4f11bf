"""Memory: values that a task, its class and its module keep, and which of them a call changed."""

import sys
from collections.abc import Mapping

from perennial.engine.task import Task

KEPT = (dict, list, set, int, float, str, bytes)
LONGEST = 10_000


def memory_of(task: Task) -> dict[str, str]:
    """Return plain values that outlive a call, as text, by name."""
    kind = type(task)
    owners = {
        "self": vars(task),
        kind.__name__: vars(kind),
        kind.__module__: vars(sys.modules[kind.__module__]),
    }
    return {
        f"{owner}.{name}": repr(value)[:LONGEST]
        for owner, values in owners.items()
        for name, value in values.items()
        if isinstance(value, KEPT) and not isinstance(value, type) and not name.startswith("__")
    }


def changes_of(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names whose value is different or new."""
    return tuple(name for name in after if before.get(name) != after[name])
