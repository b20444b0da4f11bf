"""Training jobs: created, followed, classified and cleaned up, here or on a cluster."""
