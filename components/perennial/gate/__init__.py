"""Gate: compare a challenger with the champion, overall and by slice."""
