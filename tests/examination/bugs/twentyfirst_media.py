"""A twenty-first list of bugs: plain slips in pictures, texts and searches."""

from examination.planted import bug

BUGS = []
