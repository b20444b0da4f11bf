"""Columns: how labels, numbers, pictures and texts become tensors."""
