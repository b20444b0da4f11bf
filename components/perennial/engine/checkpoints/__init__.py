"""The training state on disk: committed atomically, verified when read, restored exactly."""
