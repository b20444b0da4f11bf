import errno
import fcntl
import io
import mmap
import os

import pytest

from perennial.engine.checkpoints.direct import BLOCK_BYTES, DIRECT, bypass_cache, write_all

CONTENT = os.urandom(3 * BLOCK_BYTES)


class WithoutDirectWrites(io.FileIO):
    """Takes the flag, then refuses the write, as some file systems do."""

    def write(self, piece, /):
        if fcntl.fcntl(self, fcntl.F_GETFL) & DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return super().write(piece[:5000])  # and never writes all at once


def aligned(content: bytes) -> memoryview:
    room = mmap.mmap(-1, len(content))
    room[:] = content
    return memoryview(room)


def test_aligned_memory_is_written_past_the_cache(tmp_path):
    with io.FileIO(tmp_path / "file", "w") as stream:
        bypass_cache(stream, on=True)
        assert write_all(stream, aligned(CONTENT)) == len(CONTENT)
        bypass_cache(stream, on=False)
        write_all(stream, b"any length")
    assert (tmp_path / "file").read_bytes() == CONTENT + b"any length"


@pytest.mark.skipif(not DIRECT, reason="direct writes are Linux's")
def test_a_file_system_without_direct_writes_is_written_to_as_usual(tmp_path):
    with WithoutDirectWrites(tmp_path / "file", "w") as stream:
        assert bypass_cache(stream, on=True)
        write_all(stream, aligned(CONTENT))
        assert not fcntl.fcntl(stream, fcntl.F_GETFL) & DIRECT
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_an_error_of_the_disk_is_not_hidden():
    with io.FileIO("/dev/full", "w") as stream, pytest.raises(OSError, match="No space left"):
        write_all(stream, b"x")
