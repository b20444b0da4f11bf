"""An S3 store, and what tests of outside systems share."""

from empty_stores import environment
from s3_server import bucket, s3_endpoint
