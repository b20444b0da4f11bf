"""The pipelines, the training contract that configures them, and the command line."""
