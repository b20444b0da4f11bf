"""Checks of rows and tensors: is what enters the model what the rows say, and nothing else?"""
