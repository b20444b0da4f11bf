"""The small stream of `tests/click_stream.py`."""

from click_stream import project
