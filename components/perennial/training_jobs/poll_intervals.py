"""Poll intervals of the cluster launcher."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PollIntervals:
    """Poll intervals, in seconds.

    The job is read at least every `poll`, which also keeps open the connection that a signal
    handler needs; pods are watched.
    """

    poll: float = 10.0
    shortest: float = 1.0
    settle: float = 60.0
    """Time beyond the pods' grace period for the operator to clean up after the end."""
    curves: float = 15.0
    reconnect: float = 2.0
    """Pause before a lost or missing log is requested again."""
    heartbeat: float = 60.0
    logs: float = 60.0
    """Interval of uploads of the pods' logs: a terminated step has no time for an upload."""
