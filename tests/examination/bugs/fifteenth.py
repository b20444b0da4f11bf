"""A fifteenth list of bugs."""

BUGS = []
