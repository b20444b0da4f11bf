"""Where the training job's processes run: one interface, one module per technology."""
