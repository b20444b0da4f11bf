"""Trials: the engine trains the task for a few updates, in real processes that are then gone."""
