"""What crosses a process boundary: config sections, artifacts, lineage. Imports pydantic only."""
