"""Can this task learn at all? Sanity checks on the training skeleton, before any GPU is used."""
