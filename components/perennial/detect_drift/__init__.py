"""Step: detect drift from the champion's reference, and decay of its performance."""
