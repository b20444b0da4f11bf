"""An S3 store, beside a folder."""

from s3_server import bucket, s3_endpoint
