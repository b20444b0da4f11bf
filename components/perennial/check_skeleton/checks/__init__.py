"""Checks: one module per family; each check takes the subject and returns a `CheckResult`."""
