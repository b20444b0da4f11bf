"""Sanity checks: whether a task can learn at all, before any GPU is used."""
