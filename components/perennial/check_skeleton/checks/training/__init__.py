"""Checks that train: can it learn, from its inputs, as the contract says, in several processes?"""
