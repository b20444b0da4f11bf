"""Datasets of the twenty-second list: texts, pictures and searches."""
