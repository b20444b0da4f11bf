"""What tests of the clients share."""

from empty_stores import as_nobody, environment
from outages import road
from s3_server import bucket, s3_endpoint
