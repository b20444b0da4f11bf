"""What every step stands on: decorator, journal, lease and parameters of any length."""
