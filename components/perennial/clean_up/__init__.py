"""Exit step: leave nothing of the run on the cluster."""
