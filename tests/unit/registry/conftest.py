"""The models and the MLflow database of `tests/support/small_models.py`."""

from registered_versions import home, perennial, register
from s3_server import bucket, s3_endpoint
from small_models import environment
