"""The images, and a network of containers with the servers of a cluster."""

from container_services import store, store_endpoint, tracking_server
from containers import images, network
