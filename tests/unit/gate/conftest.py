"""The rivals of `tests/rivals.py`; the models and the MLflow database of `tests/small_models.py`."""

from rivals import task
from small_models import environment
