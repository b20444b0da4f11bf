"""The small stream of `tests/support/click_stream.py`."""

from click_stream import project
