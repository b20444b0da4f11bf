"""Commands on the model registry: reading it, and moving the champion by hand."""
