"""Hyperparameter studies: search space, trials, analysis and verdict."""
