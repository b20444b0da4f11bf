"""A fake cluster with an operator, an S3 store, and a training job to launch."""

from launching import cluster, kind, launched
from s3_server import bucket, s3_endpoint
