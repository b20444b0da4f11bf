"""The models and the MLflow database of `tests/small_models.py`."""

from small_models import environment
