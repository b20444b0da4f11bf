"""Step `validate_data`: is this snapshot fit to train on?"""
