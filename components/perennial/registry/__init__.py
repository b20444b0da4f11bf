"""Registered versions: their files, records and promotion."""
