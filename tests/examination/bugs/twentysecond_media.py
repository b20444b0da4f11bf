"""A twenty-second list of bugs: ordinary slips in texts, pictures and searches."""

BUGS = []
