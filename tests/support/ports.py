"""Ports for the servers and process groups of tests."""

import itertools
import os
import socket

# Below those that the kernel gives to outgoing connections: one of these could take a port between
# the look and its use. Each worker of pytest has ports of its own, for the same reason.
FIRST, COUNT, WORKERS = 10_000, 2_500, 8
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
_numbers = itertools.count(os.getpid())


def get_free_port() -> int:
    """Return a port on which nobody listens."""
    for number in _numbers:
        port = FIRST + WORKER * COUNT + number % COUNT
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise AssertionError
