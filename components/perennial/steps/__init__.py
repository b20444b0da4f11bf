"""Foundation of every step: decorator, journal, lease and parameters of any length."""
