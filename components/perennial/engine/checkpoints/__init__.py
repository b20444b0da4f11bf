"""The training state on disk: whole or not at all, found damaged or loaded exactly."""
