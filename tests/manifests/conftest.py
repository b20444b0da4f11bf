"""The store that a watcher looks at."""

from s3_server import bucket, s3_endpoint
