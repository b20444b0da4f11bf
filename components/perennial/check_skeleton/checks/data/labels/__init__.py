"""Checks of whose labels rows have, and whether these are known yet."""
