"""Configuration of `decide_retraining`: the model and the contract's `[triggers]` section."""

from perennial.contracts.data import ModelSection
from perennial.contracts.section import Section
from perennial.contracts.triggers import TriggersSection


class DecideRetrainingConfig(Section):
    """The part of the training contract that this step receives, as JSON."""

    model: ModelSection
    """The model whose retrainings are counted."""
    triggers: TriggersSection = TriggersSection()
    """Triggers, and how often a retraining may start."""
