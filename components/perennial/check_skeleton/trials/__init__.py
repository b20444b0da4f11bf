"""Trials: the engine trains the task for a few updates, in separate processes."""
