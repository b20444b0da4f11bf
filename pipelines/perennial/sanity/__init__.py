"""Sanity: the skeleton checks alone, live, with answers that are kept."""
