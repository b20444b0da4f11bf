"""Memory: what a training needs, which layout fits, and options that save memory."""
