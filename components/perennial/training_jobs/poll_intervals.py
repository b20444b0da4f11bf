"""Pace: how often the cluster launcher looks at what it follows."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PollIntervals:
    """How often to look, in seconds.

    The job is read at least every `poll`, which also keeps the connection open that a signal needs;
    pods are watched.
    """

    poll: float = 10.0
    shortest: float = 1.0
    settle: float = 60.0
    """Beyond the pods' grace period, for the operator to clean up after an end."""
    curves: float = 15.0
    reconnect: float = 2.0
    """Before a log whose connection was lost, or which is not there yet, is asked for again."""
    heartbeat: float = 60.0
    logs: float = 60.0
    """How old what is kept of the pods' logs may be: a step that is terminated has no time to."""
