"""Ports for the servers and process groups of tests."""

import itertools
import os
import socket

# Below those that the kernel gives to outgoing connections: one of these could take a port between
# the look and its use. Test processes begin at different places.
FIRST, COUNT = 10_000, 20_000
_numbers = itertools.count(os.getpid() * 37)


def get_free_port() -> int:
    """Return a port on which nobody listens."""
    for number in _numbers:
        port = FIRST + number % COUNT
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise AssertionError
