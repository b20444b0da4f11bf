"""What people ask of the model registry, and how they move the champion by hand."""
