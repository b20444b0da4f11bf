"""Direct writes: write large pieces of memory to disk without the kernel's page cache.

Copying into the cache takes three times the processor time of hashing, which slows training where
cores are scarce: 0.55 s against 0.18 s for 306 MB on a virtual machine.
"""

import fcntl
import io
import os

BLOCK_BYTES = 4096
"""Addresses in memory, lengths and offsets of direct writes are multiples of it."""
DIRECT = getattr(os, "O_DIRECT", 0)  # Linux


def bypass_cache(stream: io.FileIO, *, on: bool) -> bool:
    """Turn direct writes on or off; return whether the setting changed.

    File systems that cannot do them refuse here or at the first write, and are written to as usual.
    """
    flags = fcntl.fcntl(stream, fcntl.F_GETFL)
    wanted = flags | DIRECT if on else flags & ~DIRECT
    try:
        fcntl.fcntl(stream, fcntl.F_SETFL, wanted)
    except OSError:
        return False
    return wanted != flags


def write_all(stream: io.FileIO, piece: bytes | memoryview) -> int:
    """Write all of a piece, direct or not; return its length.

    Raises:
        OSError: it cannot be written either way.
    """
    rest = memoryview(piece)
    while rest:
        try:
            rest = rest[stream.write(rest) :]
        except OSError:
            if not bypass_cache(stream, on=False):
                raise
    return len(piece)
