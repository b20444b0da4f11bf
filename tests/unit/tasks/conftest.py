"""Tables, and the sanity checks run on a task over them."""

from skeleton_tables import datasets, examine

__all__ = ["datasets", "examine"]
