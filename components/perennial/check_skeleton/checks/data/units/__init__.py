"""Checks of columns of which some rows are in another unit or order."""
