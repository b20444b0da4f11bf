"""What was flushed to disk, in which order: what a loss of power leaves."""

import os


def recorded_flushes(monkeypatch) -> list[int]:
    """A list that gets the inode of each file and folder that is flushed from now on."""
    found, fsync = [], os.fsync

    def record(descriptor):
        found.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    return found
