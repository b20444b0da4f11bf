"""Configuration of `detect_drift`: the model and the contract's `[triggers]` section."""

from perennial.contracts.data import ModelSection
from perennial.contracts.section import Section
from perennial.contracts.triggers import TriggersSection


class DetectDriftConfig(Section):
    """The part of the training contract that this step receives, as JSON."""

    model: ModelSection
    """The model whose champion is the reference."""
    triggers: TriggersSection = TriggersSection()
    """Criteria of a relevant difference, and how often it must occur."""
