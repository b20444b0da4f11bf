"""Planted bugs of language models, by what is wrong: each module adds its own to `BUGS`."""

from language_bugs import losses, parameters, sight
from language_bugs.building import BUGS

__all__ = ["BUGS", "losses", "parameters", "sight"]
