"""Planted bugs: small diffs on healthy tasks, each with the check that must catch it."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from perennial.check_skeleton.registry import check_names
from perennial.check_skeleton.subject import Subject
from workshop import Workshop, results_of


@dataclass(frozen=True)
class Bug:
    """One planted bug.

    Attributes:
        name: What is wrong, in words.
        task_type: The task that has it.
        material: The kind of data that it is examined on.
        check: The check that is meant for it.
        hint: What that check's hint must contain, as a regular expression: it names the cause.
        outcome: Of that check.
        how: More arguments of `Workshop.subject`.
    """

    name: str
    task_type: type
    material: str
    check: str
    hint: str
    outcome: str
    how: dict[str, Any] = field(default_factory=dict)

    def subject(self, workshop: Workshop) -> Subject:
        """The task, ready to be examined."""
        return workshop.subject(self.task_type, self.material, **self.how)


@dataclass(frozen=True)
class Healthy:
    """A task without a bug, which no check must doubt; attributes as in `Bug`."""

    name: str
    task_type: type
    material: str
    how: dict[str, Any] = field(default_factory=dict)

    def subject(self, workshop: Workshop) -> Subject:
        """The task, ready to be examined."""
        return workshop.subject(self.task_type, self.material, **self.how)


def planted(
    bugs: list[Bug], check: str, hint: str, *, material: str, outcome: str = "failed", **how: Any
) -> Callable[[type], type]:
    """Decorates a task whose docstring describes the bug; adds it to the list."""

    def add(task_type: type) -> type:
        name = task_type.__doc__ or ""
        bugs.append(Bug(name, task_type, material, check, hint, outcome, how))
        return task_type

    return add


def require_caught(bug: Bug, workshop: Workshop) -> None:
    """The check that is meant for a bug finds it, and names the cause."""
    result = results_of(bug.subject(workshop), bug.check)[bug.check]
    assert result.outcome == bug.outcome, result
    assert re.search(bug.hint, result.hint), result.hint
    assert result.measured
    assert result.expected
    assert result.source


def require_healthy(task: Healthy, workshop: Workshop) -> None:
    """No check warns or fails, and none is left out."""
    results = results_of(task.subject(workshop))
    assert tuple(results) == check_names()
    doubted = {
        result.check: (result.outcome, result.measured, result.hint)
        for result in results.values()
        if result.outcome in ("warned", "failed")
    }
    assert not doubted
