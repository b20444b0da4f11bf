"""Checks that inputs are scaled, and that `encode` keeps what columns, lists and pictures hold."""
