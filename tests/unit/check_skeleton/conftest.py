"""The tables of `tests/support/skeleton_tables.py`."""

from skeleton_tables import datasets, examine
