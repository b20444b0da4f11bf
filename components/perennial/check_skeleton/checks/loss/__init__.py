"""Checks of losses, predictions and metrics: do they measure what they should, and agree?"""
