"""The tiny training of `tests/tiny_training.py`."""

from tiny_training import root
