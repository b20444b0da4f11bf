"""The store of `tests/support/small_models.py`."""

from small_models import environment
