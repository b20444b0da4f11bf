"""What crosses a process boundary: config sections, artifacts and lineage. Imports pydantic only."""
