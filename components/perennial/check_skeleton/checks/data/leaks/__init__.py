"""Checks of what tells the label, but is not known when predictions are made."""
