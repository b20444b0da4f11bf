"""How a model is laid out over processes and memory."""
