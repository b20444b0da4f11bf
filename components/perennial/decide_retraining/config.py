"""What `decide_retraining` is told: the model and the `[triggers]` section of its contract."""

from perennial.contracts.data import ModelSection
from perennial.contracts.section import Section
from perennial.contracts.triggers import TriggersSection


class DecideRetrainingConfig(Section):
    """The part of the training contract that this step receives, as JSON."""

    model: ModelSection
    """Whose retrainings are counted."""
    triggers: TriggersSection = TriggersSection()
    """Which triggers count, and how often a retraining may start."""
