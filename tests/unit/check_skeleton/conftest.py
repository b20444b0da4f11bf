"""The tables of `tests/skeleton_tables.py`."""

from skeleton_tables import datasets, examine
