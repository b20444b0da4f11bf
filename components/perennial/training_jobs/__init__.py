"""Training jobs: create, follow, classify and clean them up, on this machine or a cluster."""
