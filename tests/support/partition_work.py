"""Work over partitions, importable by worker processes of every kind."""

import hashlib
import os
import signal
import time
from pathlib import Path

import polars as pl

from perennial.clients import outages


def summarize(number):
    """Bytes that depend on numpy-like arithmetic and on polars, and on nothing of the machine."""
    frame = pl.DataFrame({"x": range(number, number + 5000)}).with_columns(
        y=(pl.col("x") * 0.1).sin()
    )
    return hashlib.sha256(frame.write_ipc(None).getvalue()).digest()


def kill_itself_once(marker, number):
    """The first process that comes here dies without a word; the next one works."""
    time.sleep(0.02)
    if number == 5:
        try:
            Path(marker).touch(exist_ok=False)
        except FileExistsError:
            return summarize(number)
        os.kill(os.getpid(), signal.SIGKILL)
    return summarize(number)


def kill_itself(_):
    os.kill(os.getpid(), signal.SIGKILL)


def sleep(seconds):
    time.sleep(seconds)
    return seconds


def fill_memory(megabytes):
    held = []
    for _ in range(megabytes):
        held.append(os.urandom(1 << 20))
        time.sleep(0.002)
    time.sleep(2)
    return len(held)


def environment_of(name):
    return os.environ.get(name), os.environ.get("OMP_NUM_THREADS"), pl.thread_pool_size()


def waits_for_outages(_):
    return outages.waits()
