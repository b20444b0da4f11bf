"""Background: runs a function in a thread beside a block of code."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def running_beside(work: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    """Run `work` in a thread while the block runs; at its end, set the event and wait for it."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
