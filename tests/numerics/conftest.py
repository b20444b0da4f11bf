"""The tiny training of `tests/support/tiny_training.py`."""

from tiny_training import root
