"""Reactions to faults of a training: non-finite numbers, spikes, hangs, slow ranks."""
