"""The small stream of `tests/support/click_stream.py`."""

from click_stream import project, write_month
from launching import cluster
from s3_server import bucket, s3_endpoint
