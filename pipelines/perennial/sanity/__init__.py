"""Sanity checks alone: results are shown as they come, and stored."""
