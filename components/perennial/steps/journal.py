"""Journal: the events of a local run, one JSON line each, written by every process of the run."""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, Self

from pydantic import JsonValue

from perennial.contracts.environment import RUN_FOLDER

EventKind = Literal[
    "run", "step_started", "step_reused", "progress", "step_finished", "step_failed", "step_stopped"
]


class Journal:
    """Appends to and reads the events of one run.

    Args:
        folder: The run's folder; None discards events (on a cluster KFP keeps the record).
    """

    def __init__(self, folder: Path | None) -> None:
        self.path = folder / "events.jsonl" if folder else None

    @classmethod
    def of_this_process(cls) -> Self:
        """Return the journal of the run that this process belongs to."""
        folder = os.environ.get(RUN_FOLDER)
        return cls(Path(folder) if folder else None)

    def append(self, kind: EventKind, **fields: JsonValue) -> None:
        """Record an event; one write call, so that lines of concurrent writers never mix."""
        if self.path is None:
            return
        line = json.dumps({"time": time.time(), "kind": kind, **fields}, allow_nan=False) + "\n"
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            # A killed writer may have left half a line; it must not swallow this one.
            is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            os.write(descriptor, (b"\n" if is_torn else b"") + line.encode())
        finally:
            os.close(descriptor)

    def events(self, offset: int = 0) -> Iterator[tuple[dict[str, JsonValue], int]]:
        """Yield each event from a byte offset on, with the offset after it; leave out torn ones.

        A line that a loss of power filled with zeros is no more JSON than half a one.
        """
        if self.path is None or not self.path.exists():
            return
        with self.path.open("rb") as stream:
            stream.seek(offset)
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                offset += len(line)
                event: object = None
                with contextlib.suppress(ValueError):  # of JSON, or of UTF-8
                    event = json.loads(line)
                if isinstance(event, dict):
                    yield event, offset

    def step_ends(self) -> dict[str, str]:
        """Return the last event of each step of the latest attempt, such as `failed`."""
        ends: dict[str, str] = {}
        for event, _ in self.events():
            kind, _, end = str(event["kind"]).partition("_")
            if kind == "run":  # a new attempt journals again what it reuses
                ends = {}
            elif kind == "step":
                ends[str(event["step"])] = end
        return ends
