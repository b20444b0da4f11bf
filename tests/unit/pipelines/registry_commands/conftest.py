"""The registered versions of `tests/support/registered_versions.py`."""

from registered_versions import home, perennial, register
from small_models import environment
