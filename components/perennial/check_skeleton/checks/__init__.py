"""One module per family of checks; each check takes the subject and returns a `CheckResult`."""
