"""The only doors to what lies outside the process: stores, datasets, MLflow, the run folder."""
