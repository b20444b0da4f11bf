"""The small stream of `tests/click_stream.py`, the tiny training of `tests/tiny_training.py`."""

from click_stream import project, write_month
from outages import road
from postgresql_server import postgresql
from s3_server import bucket, s3_endpoint
from small_models import environment
from tiny_training import root
