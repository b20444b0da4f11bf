"""Errors for people: what is wrong, the evidence, the next action."""

from collections.abc import Iterable
from typing import ClassVar


class PerennialError(Exception):
    """An error that the user can fix; printed without a traceback.

    Args:
        problem: What is wrong, in one sentence, with the offending value.
        evidence: What was seen that shows it.
        action: What to do next.
    """

    stale_steps: ClassVar[tuple[str, ...]] = ()
    """Earlier steps of the run whose results this error proves outdated."""

    def __init__(self, problem: str, *, evidence: str = "", action: str = "") -> None:
        self.problem = problem
        self.evidence = evidence
        self.action = action
        parts = [problem]
        if evidence:
            parts.append(f"  evidence: {evidence}")
        if action:
            parts.append(f"  to do:    {action}")
        super().__init__("\n".join(parts))


class BadDataError(PerennialError):
    """The data cannot be trained on."""

    stale_steps = ("snapshot_data",)  # so that a continued run sees the fixed data


class OutageError(PerennialError):
    """A service did not answer in time; this proves nothing about the task."""


class BadTaskError(PerennialError):
    """The user's task cannot be loaded or breaks its protocol."""


class DamagedModelError(PerennialError):
    """The files of a model are not the ones that were stored: altered, truncated or missing."""


class ShardingError(PerennialError):
    """A model cannot be scored in shards here; this proves nothing about the model."""


class TrainingFailedError(PerennialError):
    """The training job ended without a finished training."""


class NoCheckpointError(PerennialError):
    """None of a training's checkpoints can be read."""

    stale_steps = ("train_model",)


def join_names(names: Iterable[object], most: int = 4) -> str:
    """Join names for a message, abbreviated after so many."""
    every = list(map(str, names))
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return f"{', '.join(every[:most])}{more}"
