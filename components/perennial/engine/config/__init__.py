"""Options of a training; imports no torch."""
