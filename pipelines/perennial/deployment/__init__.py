"""On a cluster: what should be there, what is there, and the calls between the two."""
