"""The only doors to what lies outside the process: object store, datasets, MLflow, the run folder."""
