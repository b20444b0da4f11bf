"""The registered versions of `tests/registered_versions.py`."""

from registered_versions import home, register
from small_models import environment
