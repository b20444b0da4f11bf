"""Evaluation of a model: scores on a split, exact metrics, intervals."""
