"""Checks of augmentation: it follows its generator, keeps labels, and stays out of evaluation."""
