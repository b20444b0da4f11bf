"""Study step: run the trials of a hyperparameter study."""
