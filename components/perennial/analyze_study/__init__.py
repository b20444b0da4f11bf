"""The step `analyze_study`: what a study has shown, and whether a finalist is adopted."""
