"""Data: the dataset of a snapshot, its split rule, and columns of pictures and text."""
