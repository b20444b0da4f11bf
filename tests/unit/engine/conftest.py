"""The tiny training of `tests/support/tiny_training.py`."""

from s3_server import bucket, s3_endpoint
from tiny_training import root
