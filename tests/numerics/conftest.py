"""The tiny training of `tests/support/tiny_training.py`, and an MLflow database."""

from small_models import environment
from tiny_training import root
