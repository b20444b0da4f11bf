"""A model that serves wherever MLflow's pyfunc runs, with its own code and nothing of training."""
