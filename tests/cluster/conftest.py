from s3_server import bucket, s3_endpoint
