"""Does the challenger beat the champion?"""
