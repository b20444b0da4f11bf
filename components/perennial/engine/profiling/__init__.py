"""Profiling of time and memory of a step, and which options follow from it."""
