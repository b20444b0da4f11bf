"""Which rows belong to an update, and how they become tensors without the loop waiting."""
