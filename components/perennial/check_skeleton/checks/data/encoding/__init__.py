"""Checks of what `encode` makes of rows: tensors, their order, labels and fitted state."""
