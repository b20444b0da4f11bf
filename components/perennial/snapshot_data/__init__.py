"""Step `snapshot_data`: which bytes, which columns, which rows in which split?"""
