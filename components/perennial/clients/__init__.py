"""External I/O: object stores, MLflow, Kubernetes, Kubeflow Pipelines, version control."""
