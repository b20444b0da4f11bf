"""Processes: the group, the mesh, and the few numbers that all of them share."""
