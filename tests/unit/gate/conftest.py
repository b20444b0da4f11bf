"""The rivals of `tests/support/rivals.py`; the models and the MLflow database of `tests/support/small_models.py`."""

from rivals import task
from small_models import environment
