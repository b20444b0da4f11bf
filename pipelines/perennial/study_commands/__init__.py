"""The verbs of `perennial study`, and the study that they read."""
