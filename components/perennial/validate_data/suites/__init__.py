"""Suites of expectations that a team wrote with Great Expectations, judged on a snapshot."""
