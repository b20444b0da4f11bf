"""Metrics of predictions: by name, each with its meaning and requirements."""
