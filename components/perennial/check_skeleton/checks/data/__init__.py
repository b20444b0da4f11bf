"""Checks of rows and tensors: the model's inputs contain what the rows hold, nothing else."""
