"""Values that cross a process boundary: config sections, artifacts, lineage."""
