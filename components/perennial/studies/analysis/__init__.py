"""Analysis of a study's trials: pure functions from the plan and the trials to findings."""
