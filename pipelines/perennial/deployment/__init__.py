"""Deployment on a cluster: the desired state, the observed state, and the calls between them."""
