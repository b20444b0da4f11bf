"""The small stream of `tests/support/click_stream.py`, the tiny training, whole runs as processes."""

from click_stream import project, write_month
from killing import undisturbed
from outages import road
from postgresql_server import postgresql
from s3_server import bucket, s3_endpoint
from small_models import environment
from tiny_training import root
