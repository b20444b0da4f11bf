"""Checks of the model alone: who sees what, what is alive, what learns?"""
