"""Throughput of the training engine beside hand-written loops and other frameworks."""
